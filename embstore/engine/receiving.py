"""The execution of the leader's records on a standby. It is like recovery, but the store is open.

A record is executed, and appended unchanged to the standby's own log, while the standby has the
engine, so that no commit happens in between. When the leader has made a label after a command, the
standby makes the label after the same command, so that the standby has the label if the leader
later restores it. A label that the leader has dropped or protected is dropped or protected here as
well.

A standby that was away continues at its last command, but it may lack a label that the leader keeps
from before: the leader has made the label after the same command, and a later commit has deleted
the record; or the standby was the leader, and has dropped the label for one that it alone had. The
leader's next list of labels shows this. Only a commit of the leader has the label then.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from embstore.engine.recovery import execute_again, executing_again
from embstore.errors import CorruptTableError
from embstore.storage.command_records import CHECKPOINT, COMMAND, Record
from embstore.tables.logged import Label, Logged, note_checkpoint

if TYPE_CHECKING:
    from embstore.engine.engine import Engine


def receive(engine: "Engine", records: Iterable[Record], *, check_labels: bool = True) -> int:
    """Execute records in order. Return the mark up to which the log must be durable so that these
    records survive a crash.

    check_labels : whether this store must have the labels that the last list of labels contains.
        It need not if it has taken a commit of the leader: this commit can be newer than the list,
        and then lacks labels that the leader has dropped in between.

    Raises CorruptTableError if commands between this store's last command and a record's command
    are missing, if a command's result differs from its result on the leader, or if a label is
    missing.
    """
    log = engine.log
    assert log is not None
    lacking = ""
    for record in records:
        if record.kind == CHECKPOINT:
            # in slices, so that lookups can run in between; no record is executed meanwhile
            engine.commits.prepare()
        with engine.tables.frame.having(None), executing_again(engine):
            logged = log.read(record)
            if logged.label is not None:
                _make_label(engine, logged, logged.label)
                continue
            if logged.labels is not None:
                lacking = _keep_labels(engine, logged, logged.labels)
            log.received = record
            try:
                execute_again(engine, logged, log.memory)
            finally:
                log.received = None
            if record.kind != COMMAND:
                _take_epoch(engine, logged)
                log.append_received(record)
    if lacking and check_labels:  # the last list counts: earlier ones may have what was dropped
        raise CorruptTableError(lacking)
    return log.mark


def _take_epoch(engine: "Engine", logged: Logged) -> None:
    """Begin the epoch that the leader began at this record, by a promotion or after a crash."""
    is_here = logged.number == engine.tables.frame.command_number
    if is_here and logged.epoch > engine.storage.catalogue.epoch:
        engine.storage.begin_epoch(logged.epoch)


def _make_label(engine: "Engine", logged: Logged, label: Label) -> None:
    storage, log = engine.storage, engine.log
    assert log is not None
    number = engine.tables.frame.command_number
    made = storage.catalogue.checkpoint(label.label)
    if number != logged.number or (made is not None and made.state.command != number):
        raise CorruptTableError(
            f"{logged.path}: expected the label {label.label!r} at command {logged.number}, "
            f"found the store at {number}"
        )
    storage.keep = label.keep
    if made is None:
        with engine.tables.reading():
            engine.tables.commit(label.label, label.metadata)
        made = storage.catalogue.checkpoints[-1]
    if label.origin is not None:
        note_checkpoint(log.memory, label.origin, made, storage.catalogue)


def _keep_labels(engine: "Engine", logged: Logged, labels: dict[str, bool]) -> str:
    """Keep only the leader's labels, and protect the labels that the leader protects. Return a
    description of the labels that this store lacks; "" if it has all of them.

    The caller appends the leader's record of the labels, unchanged, to this store's log. A record
    that arrives a second time changes nothing.
    """
    storage = engine.storage
    before = storage.catalogue.checkpoints
    kept = [one for one in before if one.label in labels]
    after = tuple(replace(one, protected=labels[one.label]) for one in kept)
    if [(one.label, one.protected) for one in after] != [(o.label, o.protected) for o in before]:
        with engine.tables.reading():
            storage.keep_only(after)
    missing = sorted(labels.keys() - {one.label for one in kept})
    if not missing:
        return ""
    named = ", ".join(map(repr, missing))
    return (
        f"{logged.path}: at command {logged.number} the leader keeps {named}, this store does not"
    )


def begin_epoch(engine: "Engine", epoch: int) -> int:
    """Begin the epoch of a promoted standby. Return the mark up to which the log must be durable so
    that the epoch survives a crash.

    Earlier answers to clients are valid in the new epoch, because none of the commands was undone.
    """
    log = engine.log
    with engine.tables.frame.having(None):
        before = engine.storage.catalogue.epoch
        engine.storage.begin_epoch(epoch)
        if log is None:
            return 0
        for client in log.memory.answers.clients.values():
            for sequence, answer in client.calls.items():
                if answer.context.epoch == before:
                    context = replace(answer.context, epoch=epoch)
                    client.calls[sequence] = answer._replace(context=context)
        number = engine.tables.frame.command_number
        log.append_answers(number)
        # The old leader will follow this store: this list makes it drop labels that it alone has.
        checkpoints = engine.storage.catalogue.checkpoints
        log.reserve_labels(checkpoints)
        log.append_labels(checkpoints, number)
        return log.mark

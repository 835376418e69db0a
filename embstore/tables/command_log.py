"""The command log, a write-ahead log of commands: a command is logged before it is acknowledged.

A store is a pure function of its commands (docs/contract.md, rule 5). Uncommitted changes therefore
survive a crash if the commands are logged: opening the store executes them again
(`embstore.engine.recovery`), through the same executor, with the same bits. The levels of
**durability** define when a command is acknowledged:

    checkpoint   only the last commit survives a crash; nothing is logged
    interval     a command is acknowledged at once; it is written soon, and the log is synced at
                 an interval: a crash loses the commands since the last sync
    commands     a command is acknowledged when it is on the disk

A command is appended when it gets its number, inside its call. Therefore the log contains the
commands in the order in which the store executed them. A thread writes and syncs the log while the
next command is already being applied. Only the acknowledgement waits.

An update is logged in its summed form: each key once, with the scaled sum of its gradients (rules 2
and 4), which the engine has just computed, and a scale of 1. For a Zipf-distributed batch this
takes a third of the bytes. The log owns these arrays, so that callers need not keep their own
arrays until the log is written.

The log also contains the answers that clients may still need (answers.py).

**Labels** are in the catalogue. The command log records them for standbys: one label when it is
made, and all labels that are kept after a label was dropped or protected. The record of all labels
is written again after each commit, because the commit deletes earlier records of labels, also those
that follow the same command: a standby that was away finds by the list which labels it lacks. This
record also lists the sessions that have a resume position, for the same reason: the others are
forgotten. It is also written whenever the log is opened, because a crash may have come between the
writes of the catalogue and of the record.

A look-ahead step is logged by its effect: an update of the tables' keys, and the session's new
resume position.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from embstore.choices import Durability
from embstore.commands import Command
from embstore.results import Context
from embstore.storage import command_records
from embstore.storage.command_files import CommandFiles
from embstore.storage.command_records import (
    ANSWERS,
    CHECKPOINT,
    COMMAND,
    FORGOTTEN,
    LABELS,
    Part,
    Record,
    RecordReader,
    record_bytes,
)
from embstore.storage.states import KeptState
from embstore.storage.storage import Storage
from embstore.tables.answers import Answer, Origin
from embstore.tables.logged import Codec, Logged, Memory, SessionPlace, framed, read_record

_FORGOTTEN_BYTES_MAX = 8192
"""The most bytes of a record of `append_forgotten`. A session's name has at most 255 characters,
and JSON writes a character in at most twelve bytes."""


class CommandLog:
    """The command log of an open store. Its callers have the engine, except callers of `wait` and
    of methods documented for any thread.

    Parameters
    ----------
    memory, read : the content of the command log when the store was opened (`read_log`)
    number : number of the last command
    sync_every_s : interval in seconds of level "interval"
    """

    def __init__(
        self,
        storage: Storage,
        codec: Codec,
        level: Durability,
        memory: Memory,
        read: RecordReader,
        *,
        number: int,
        sync_every_s: float,
        on_host: Callable[[Any], Any],
    ) -> None:
        self.level = level
        self.sync_every_s = sync_every_s
        self.memory = memory
        self._borrowed = 0  # the mark of the last record with arrays of a caller
        self.origin: Origin | None = None
        """The origin of the call that now has the engine."""
        self.replay_s = 0.0
        """The approximate seconds that a replay of the uncommitted commands would take."""
        self.received: Record | None = None
        """On a standby: the record, from the leader's command log, of the command that is being
        executed. It is appended unchanged."""
        self._codec = codec
        self._storage = storage
        self._on_host = on_host
        self.files = CommandFiles(
            storage.files,
            bytes.fromhex(storage.catalogue.store_id),
            read,
            sync_every_s=sync_every_s if level == "interval" else 0.0,
            failed=storage.fail,
        )
        try:
            if memory.label is not None:
                self._append_label(memory.label, storage.catalogue.head.command)
            if memory.is_new or memory.epoch != storage.catalogue.epoch:
                self.append_answers(number)
            checkpoints = storage.catalogue.checkpoints
            self.reserve_labels(checkpoints)
            self.append_labels(checkpoints, number)
            if storage.catalogue.commands is None:
                self.files.sync()
                storage.name_commands(self.files.synced)
        except BaseException:
            self.files.close()
            raise

    # Appending

    def begin(
        self,
        command: Command[Any] | None,
        place: SessionPlace | None,
        part_id: int = 0,
        *,
        is_own: bool = False,
    ) -> Callable[[int, int], None]:
        """Reserve space for a command. Return a function that appends the command, given its number
        and life.

        part_id : the id of the cluster's command of which the command is a part; 0: it has none
        is_own : whether the log owns the command's arrays

        Raises CapacityError if there is no space; in this case nothing has changed.
        """
        began = perf_counter()
        if self.received is not None:
            parts: list[Part] = [self.received.body]
            self.files.reserve(len(self.received.body))
            return partial(self._end, parts, began, False)
        head: dict[str, Any] = {"next_table_id": self._storage.next_table_id}
        if place is not None:
            noted = place.place
            head |= {"session": place.session, "step": noted.step, "table_ids": noted.table_ids}
        if part_id:
            head["part_id"] = part_id
        message: list[Part] = []
        if command is not None:
            head["verb"] = type(command).__name__
            message = self._codec.parts(command, self.origin, self._on_host)
        parts = [*framed(head), *message]
        self.files.reserve(sum(map(len, parts)))
        return partial(self._end, parts, began, not is_own)

    def _end(
        self, parts: list[Part], began: float, is_borrowed: bool, number: int, life: int
    ) -> None:
        mark = self.files.append(COMMAND, number, parts, life)
        if is_borrowed:
            self._borrowed = mark
        self.replay_s += perf_counter() - began

    def answered(self, command: Command[Any], result: Any, context: Context) -> None:
        """Keep the answer of the call that has the engine. A replay computes the same answer again,
        unless it is the answer of a restore, which has a new epoch."""
        if self.origin is not None:
            answer = Answer(type(command).__name__, command.short_answer(result), context)
            self.memory.answers.add(self.origin, answer)

    def reserve_forgotten(self) -> None:
        """Reserve space for `append_forgotten`. Raises CapacityError if there is no space."""
        self.files.reserve(_FORGOTTEN_BYTES_MAX)

    def append_forgotten(self, session: str, number: int) -> None:
        """Append a record that the resume position of a session is forgotten."""
        self.files.append(FORGOTTEN, number, framed({"session": session}))

    def reserve_labels(self, checkpoints: Sequence[KeptState]) -> None:
        """Reserve space for `append_labels`. Raises CapacityError if there is no space."""
        self.files.reserve(sum(map(len, self._labels(checkpoints))))

    def append_labels(self, checkpoints: Sequence[KeptState], number: int) -> None:
        """Append a record that states which checkpoints are kept, and which of these are
        protected."""
        self.files.append(LABELS, number, self._labels(checkpoints))

    def _labels(self, checkpoints: Sequence[KeptState]) -> list[Part]:
        head: dict[str, Any] = {"labels": _protected(checkpoints)}
        if self.origin is not None:
            origin = self.origin
            head["origin"] = [origin.client_id, origin.sequence, origin.finished_below]
        return framed(head)

    def read(self, record: Record) -> Logged:
        """Return the content of a record of a leader's command log, and keep the answers in it."""
        return read_record(record, self._codec, self.memory, self._storage.catalogue)

    def append_received(self, record: Record) -> None:
        """Append a record of a leader's command log that is not a command."""
        self.files.reserve(len(record.body))
        self.files.append(record.kind, record.command, [record.body])

    # Commits

    def before_commit(
        self, number: int, label: dict[str, Any] | None, sessions: Iterable[str]
    ) -> command_records.Place:
        """Begin a segment with the answers, which are not part of a commit. Sync the log, and
        return its end.

        If the commit is a checkpoint, its answer does not exist yet. Therefore the checkpoint's
        origin is stored with the label; after a crash, the catalogue shows whether the checkpoint
        was made.

        sessions : the sessions that have a resume position
        """
        self.files.segments.end()
        if label is not None and self.origin is not None:
            origin = self.origin
            label["origin"] = [origin.client_id, origin.sequence, origin.finished_below]
        self.append_answers(number, label)
        self.files.sync()
        synced = self.files.synced
        kept = _protected(self._storage.catalogue.checkpoints)
        made = [] if label is None else framed(label)
        if label is not None:
            kept |= {label["label"]: False}  # the commit may drop older labels: that takes less
        listed = framed({"labels": kept, "sessions": list(sessions)})
        self.files.reserve(record_bytes(sum(map(len, made))) + sum(map(len, listed)))
        return synced

    def after_commit(
        self, number: int, label: dict[str, Any] | None, sessions: Iterable[str]
    ) -> None:
        """Append, for standbys, a record of the label that was made, and one of all labels and of
        the sessions that have a resume position. Delete committed segments."""
        if label is not None:
            self.files.append(CHECKPOINT, number, framed(label))
        # without an origin: the call that has the engine is no change of a label's retention
        kept = _protected(self._storage.catalogue.checkpoints)
        self.files.append(LABELS, number, framed({"labels": kept, "sessions": list(sessions)}))
        commands = self._storage.catalogue.commands
        assert commands is not None
        self.files.segments.forget(commands.segment)
        self.replay_s = 0.0

    def _append_label(self, label: dict[str, Any], number: int) -> None:
        parts = framed(label)
        self.files.reserve(sum(map(len, parts)))
        self.files.append(CHECKPOINT, number, parts)

    def append_answers(self, number: int, label: dict[str, Any] | None = None) -> None:
        """Append all answers that clients may still need, with the label that is about to be
        made."""
        answers = self.memory.answers
        clients = [
            [
                name,
                client.floor,
                [[n, answer.verb, self._encoded(answer)] for n, answer in client.calls.items()],
            ]
            for name, client in answers.clients.items()
        ]
        head = {
            "instance": self.memory.instance,
            "epoch": self._storage.catalogue.epoch,
            "forgotten": sorted(answers.forgotten),
            "clients": clients,
            "answered": self.memory.cluster_commands.ids,
            "given_up": self.memory.cluster_commands.given_up,
        }
        if label is not None:
            head["label"] = label
        parts = framed(head)
        self.files.reserve(sum(map(len, parts)))
        self.files.append(ANSWERS, number, parts)

    def _encoded(self, answer: Answer) -> str | None:
        if answer.result is None:
            return None
        return b64encode(self._codec.result_bytes(*answer)).decode()

    # Waiting

    @property
    def is_durable(self) -> bool:
        """Whether commands are acknowledged only when they are on the disk, so that a crash loses
        none of them."""
        return self.level == "commands"

    @property
    def mark(self) -> int:
        """The mark (a position in the log) up to which the log must be durable before a command can
        be acknowledged now; 0: the command need not wait."""
        return self.files.appended if self.is_durable else 0

    def wait(self) -> None:
        """Wait until the commands appended so far can be acknowledged, and callers can change the
        arrays that they passed. Any thread."""
        if self.is_durable:
            self.files.wait(self.files.appended)
        else:
            self.files.wait(self._borrowed, written=True)

    def close(self) -> None:
        """Write and sync waiting records, and close the log."""
        self.files.close()


def _protected(checkpoints: Sequence[KeptState]) -> dict[str, bool]:
    """Return, for each label, whether its checkpoint is protected."""
    return {one.label: one.protected for one in checkpoints}

"""The reference model as a judge of commands: what each did, and what its result should have been.

`Model.follow` is told every command with its result. It does the same on the dense reference
(tests/reference.py), and compares rows, t and command numbers; sessions are a few dictionaries
here. A verb that changes no row and returns none is judged elsewhere: here it does nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arithmetic import LEAF_RECORD
from embstore.results import AcknowledgedUpdate, Place
from embstore_proto import narrow
from tests.commands.rows import in_order, same_rows
from tests.reference import ReferenceStore
from tests.rules import spread_bags

Gradients = dict[str, tuple[Any, Any]]


@dataclass
class Session:
    """What is known of one session."""

    tables: tuple[str, ...]
    world_size: int
    last_step: int = 0
    members: dict[str, int] = field(default_factory=dict)
    """The rank of each member."""
    announced: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    """By step and rank: the keys of each table."""
    sent: dict[int, Gradients] = field(default_factory=dict)
    """By rank: what was sent of the step whose turn it is."""


@dataclass
class Scan:
    """What a scan is to return."""

    table: str
    rows: dict[int, Any]
    """Weights and state by key, ascending."""
    deleted: list[int]
    """Keys of rows that there were at its other checkpoint, and that there are no more."""
    is_sparse: bool


class Model:
    """The reference store, its checkpoints and sessions."""

    def __init__(self) -> None:
        self.store = ReferenceStore()
        self.kept: dict[str, Any] = {}
        self.sessions: dict[str, Session] = {}
        self.places: dict[str, Place] = {}
        """Of each session, open or not."""
        self.table_ids: dict[str, int] = {}
        self.scans: dict[str, Scan] = {}
        self.rows_dtype = "float32"
        """What looked-up rows travel as."""

    def as_sent(self, rows: Any) -> Any:
        """Return looked-up rows as they come."""
        if self.rows_dtype == "float32":
            return rows
        return narrow.widened(narrow.rounded(np.ascontiguousarray(rows), self.rows_dtype))

    def follow(self, command: c.Command[Any], result: Any) -> None:
        """Do what a command has done, and judge its result."""
        VERBS[type(command)](self, command, result)

    def session_of(self, member: str) -> tuple[str, Session]:
        """Return the session of a member, and its name."""
        return next((n, s) for n, s in self.sessions.items() if member in s.members)

    def last_step(self, session: str, tables: Any) -> int:
        """Return where a session goes on, over some tables."""
        place = self.places.get(session, Place(0))
        bound = {name: self.table_ids[name] for name in tables if name in place.table_ids}
        if place.table_ids and not bound:
            return 0
        return place.step if bound.items() <= place.table_ids.items() else 0

    def digests(self) -> dict[str, str]:
        """Return the digest of every table."""
        return {name: self.store.table(name).digest() for name in self.store.tables()}

    def is_acknowledged(self, result: Any, tables: Any = None) -> None:
        """Compare the number of the last command, and t."""
        assert result.command == self.store.command_number
        if isinstance(result, AcknowledgedUpdate):
            assert result.t == {name: self.store.table(name).t for name in tables}
        elif tables is not None:
            assert result.t == self.store.table(tables).t


# Tables


def _create(model: Model, command: c.CreateTable, result: Any) -> None:
    config = command.config
    model.store.create_table(
        config.name,
        dim=config.dim,
        rows=None if config.key_space == "sparse" else config.rows,
        optimizer=config.optimizer,
        initializer=config.initializer,
        seed=config.seed,
        key_space=config.key_space,
    )
    assert result.t == model.store.table(config.name).t
    model.table_ids[config.name] = result.table_id


def _drop(model: Model, command: c.DropTable, result: Any) -> None:
    model.store.drop_table(command.table)
    del model.table_ids[command.table]
    model.is_acknowledged(result)


def _grow(model: Model, command: c.GrowTable, result: Any) -> None:
    model.store.table(command.table).grow(command.rows)
    model.is_acknowledged(result, command.table)


def _set_rate(model: Model, command: c.SetLearningRate, result: Any) -> None:
    model.store.table(command.table).learning_rate = command.learning_rate
    model.is_acknowledged(result, command.table)


def _describe(model: Model, command: c.GetTable, result: Any) -> None:
    table = model.store.table(command.table)
    found = result.config
    assert (found.name, found.rows, result.t) == (table.name, table.rows, table.t)
    assert found.optimizer.learning_rate == table.learning_rate


def _list(model: Model, command: c.ListTables, result: Any) -> None:
    assert [table.config.name for table in result] == model.store.tables()


def _digest(model: Model, command: c.GetDigest, result: Any) -> None:
    table = model.store.table(command.table)
    assert (result.digest, result.t) == (table.digest(), table.t)


def _leaves(model: Model, command: c.GetLeaves, result: Any) -> None:
    table = model.store.table(command.table)
    found = np.frombuffer(result.records, LEAF_RECORD)
    _digest(model, c.GetDigest(command.table), result.digest)
    assert {int(block): leaf.tobytes() for block, leaf in found} == table.leaves()


# Durability


def _checkpoint(model: Model, command: c.Checkpoint, result: Any) -> None:
    kept = model.store.snapshot(), dict(model.places), dict(model.table_ids)
    model.kept[command.label] = kept
    assert result.command == model.store.command_number


def _set_retention(model: Model, command: c.SetRetention, result: Any) -> None:
    assert result.label == command.label
    if command.retention == "dropped":
        del model.kept[command.label]
    else:
        assert result.protected == (command.retention == "protected")


def _checkpoints(model: Model, command: c.ListCheckpoints, result: Any) -> None:
    model.kept = {kept.label: model.kept[kept.label] for kept in result}


def _backup(model: Model, command: c.Backup, result: Any) -> None:
    assert result.label == (command.label or f"command-{result.command}")
    if command.label is None:
        assert result.command == model.store.command_number


def _restore(model: Model, command: c.Restore, result: Any) -> None:
    snapshot, places, table_ids = model.kept[command.label]
    model.store.restore(snapshot)
    model.places, model.table_ids = dict(places), dict(table_ids)
    model.scans.clear()
    if command.force:
        model.sessions.clear()
    model.is_acknowledged(result)


# Rows


def _lookup(model: Model, command: c.Lookup, result: Any) -> None:
    rows = [model.store.table(part.table).lookup(part.keys) for part in command.tables]
    same_rows([table.rows for table in result.tables], *map(model.as_sent, rows))


def _pooled(model: Model, command: c.LookupPooled, result: Any) -> None:
    rows = [
        model.store.table(part.table).lookup_pooled(
            part.keys, part.bags.offsets, part.bags.mode, part.bags.weights
        )
        for part in command.tables
    ]
    same_rows([table.rows for table in result.tables], *map(model.as_sent, rows))


def _read(model: Model, command: c.ReadRows, result: Any) -> None:
    found = result.tables[0]
    expected = model.store.table(command.keys.table).read_rows(command.keys.keys)
    same_rows([found.rows, found.state], *expected)


def _gradients(parts: tuple[c.TableGradients, ...]) -> Gradients:
    return {part.table: (part.keys, part.gradients) for part in parts}


def _step(model: Model, ranks: list[Gradients], how: c.UpdateOptions, result: Any) -> None:
    before = {name: model.store.table(name).t for share in ranks for name in share}
    options = how.learning_rates or how.learning_rate, how.gradient_scale, how.on_nonfinite
    after = model.store._step(ranks, *options)
    assert result.skipped == (bool(before) and before == after)
    model.is_acknowledged(result, after)


def _update(model: Model, command: c.Update, result: Any) -> None:
    _step(model, [_gradients(command.tables)], command.options, result)


def _update_pooled(model: Model, command: c.UpdatePooled, result: Any) -> None:
    gradients = {
        part.table: (
            part.keys,
            spread_bags(part.gradients, part.bags.offsets, part.bags.mode, part.bags.weights),
        )
        for part in command.tables
    }
    _step(model, [gradients], command.options, result)


def _update_ranks(model: Model, command: c.UpdateRanks, result: Any) -> None:
    ranks = [_gradients(rank.tables) for rank in command.ranks]
    _step(model, ranks, command.options, result)


def _assign(model: Model, command: c.Assign, result: Any) -> None:
    model.store.table(command.keys.table).assign(command.keys.keys, command.rows)
    model.is_acknowledged(result, [command.keys.table])


def _delete(model: Model, command: c.DeleteRows, result: Any) -> None:
    assert result.rows == model.store.table(command.keys.table).delete(command.keys.keys)
    model.is_acknowledged(result, command.keys.table)


def _clear(model: Model, command: c.ClearTable, result: Any) -> None:
    assert result.rows == model.store.table(command.table).clear()
    model.is_acknowledged(result, command.table)


def _put(model: Model, command: c.PutRows, result: Any) -> None:
    keys = command.keys
    table = model.store.table(keys.table)
    table.put_rows(keys.keys, command.weights, command.state, command.add_t)
    model.is_acknowledged(result, [keys.table])


# Scans


def _open_scan(model: Model, command: c.OpenScan, result: Any) -> None:
    table = model.store.table(command.table)
    written, t = dict(table._written), table.t
    if command.label is not None:
        _, _, _, t, written = model.kept[command.label][0][command.table]
    before: dict[int, Any] = {}
    if command.since is not None:
        before = model.kept[command.since][0][command.table][4]
        assert result.since_t == model.kept[command.since][0][command.table][3]
    # Each write makes a new row.
    rows = {key: written[key] for key in sorted(written) if written[key] is not before.get(key)}
    deleted = sorted(before.keys() - written.keys())
    model.scans[command.scan] = Scan(command.table, rows, deleted, table.config.is_sparse)
    assert (result.rows, result.deleted, result.table.t) == (len(rows), len(deleted), t)


def _read_scan(model: Model, command: c.ReadScan, result: Any) -> None:
    if model.scans[command.scan].is_sparse:
        result = in_order(result)
    if command.deleted:
        gone = [key for key in model.scans[command.scan].deleted if key >= command.low]
        assert result.keys.tolist() == gone[: command.rows]
        return
    expected = [item for item in model.scans[command.scan].rows.items() if item[0] >= command.low]
    expected = expected[: command.rows]
    assert result.keys.tolist() == [key for key, _ in expected]
    same_rows(result.rows, *(row.weights for _, row in expected))
    assert (result.state is not None) == command.with_state
    if command.with_state:
        same_rows(result.state, *(row.state for _, row in expected))


def _close_scan(model: Model, command: c.CloseScan, result: Any) -> None:
    model.scans.pop(command.scan, None)


# Sessions


def _open(model: Model, command: c.OpenSession, result: Any) -> None:
    last_step = model.last_step(command.name, command.tables)
    session = model.sessions.get(command.name)
    if session is None or not session.members:  # which may have ended with its server
        session = Session(command.tables, command.world_size, last_step)
    model.sessions[command.name] = session
    assert result.last_step == session.last_step


def _join(model: Model, command: c.JoinSession, result: Any) -> None:
    session = model.sessions[command.name]
    members = {m: rank for m, rank in session.members.items() if rank != command.rank}
    session.members = {**members, result.member: command.rank}


def _close(model: Model, command: c.CloseSession, result: Any) -> None:
    for name, session in list(model.sessions.items()):
        if session.members.pop(command.member, None) is not None and not session.members:
            del model.sessions[name]
            if command.forget:
                model.places.pop(name, None)


def _end(model: Model, command: c.EndSession, result: Any) -> None:
    del model.sessions[command.name]


def _announce(model: Model, command: c.Announce, result: Any) -> None:
    _, session = model.session_of(command.member)
    for step in command.steps:
        keys = {part.table: part.keys for part in step.tables}
        session.announced.setdefault(step.step, {})[session.members[command.member]] = keys


def _of_step(model: Model, command: Any) -> tuple[str, Session, dict[str, Any]]:
    """Return a command's session by name, and the keys that its rank announced."""
    name, session = model.session_of(command.member)
    return name, session, session.announced[command.step][session.members[command.member]]


def _lookup_step(model: Model, command: c.LookupStep, result: Any) -> None:
    *_, announced = _of_step(model, command)
    assert [table.table for table in result.tables] == list(announced)
    rows = [model.store.table(name).lookup(keys) for name, keys in announced.items()]
    same_rows([table.rows for table in result.tables], *rows)


def _lookup_step_pooled(model: Model, command: c.LookupStepPooled, result: Any) -> None:
    *_, announced = _of_step(model, command)
    rows = []
    for part in command.tables:
        keys, bags = announced[part.table][part.inverse], part.bags
        table = model.store.table(part.table)
        rows.append(table.lookup_pooled(keys, bags.offsets, bags.mode, bags.weights))
    same_rows([table.rows for table in result.tables], *rows)


def _read_step(model: Model, command: c.ReadStep, result: Any) -> None:
    _, session, announced = _of_step(model, command)
    assert result.last_step == session.last_step
    for part, found in zip(command.tables, result.tables, strict=True):
        keys = announced[part.table][part.positions]
        same_rows([found.rows, found.state], *model.store.table(part.table).read_rows(keys))


def _update_step(model: Model, command: c.UpdateStep, result: Any) -> None:
    """Do the update, once all ranks have sent their shares of it."""
    if _is_answered_again(model, command):
        return
    _, session, announced = _of_step(model, command)
    gradients = {}
    for part in command.tables:
        keys, positions = announced[part.table], part.positions
        gradients[part.table] = keys if positions is None else keys[positions], part.gradients
    session.sent[session.members[command.member]] = gradients
    if len(session.sent) == session.world_size:
        before = {name: model.store.table(name).t for name in session.tables}
        how = command.options
        options = how.learning_rates or how.learning_rate, how.gradient_scale, how.on_nonfinite
        ranks = [session.sent[rank] for rank in range(session.world_size)]
        model.store._step(ranks, *options)
        after = {name: model.store.table(name).t for name in session.tables}
        assert result.skipped == (before == after and any(ranks))
        _finished(model, command, result)


def _is_answered_again(model: Model, command: Any) -> bool:
    """Tell whether the step was finished before: its outcome is remembered."""
    _, session = model.session_of(command.member)
    return command.step not in session.announced and command.step <= session.last_step


def _finished(model: Model, command: Any, result: Any) -> None:
    name, session, _ = _of_step(model, command)
    session.last_step = command.step
    bound = {table: model.table_ids[table] for table in session.tables}
    model.places[name] = Place(command.step, bound)
    session.sent.clear()
    del session.announced[command.step]
    model.is_acknowledged(result, session.tables)


def _end_step(model: Model, command: c.ReleaseStep | c.SkipStep, result: Any) -> None:
    if _is_answered_again(model, command):
        return
    _, session, _ = _of_step(model, command)
    session.sent[session.members[command.member]] = {}
    if len(session.sent) == session.world_size:
        model.store.command_number += 1
        _finished(model, command, result)


def _put_step(model: Model, command: c.PutStepRows, result: Any) -> None:
    number = model.store.command_number
    for part in command.tables:
        table = model.store.table(part.table)
        table.put_rows(part.keys, part.weights, part.state, part.add_t)
    model.store.command_number = number + 1
    model.is_acknowledged(result, [part.table for part in command.tables])


def _nothing(model: Model, command: Any, result: Any) -> None:
    """No row changes, and none is read."""


VERBS: dict[type[Any], Callable[[Model, Any, Any], None]] = {
    c.GetServerInfo: _nothing,
    c.GetStats: _nothing,
    c.ResizeCache: _nothing,
    c.SetPolicy: _nothing,
    c.CheckIntegrity: lambda model, command, result: same_rows([result], ""),
    c.CreateTable: _create,
    c.GetTable: _describe,
    c.ListTables: _list,
    c.DropTable: _drop,
    c.GrowTable: _grow,
    c.SetLearningRate: _set_rate,
    c.GetDigest: _digest,
    c.GetLeaves: _leaves,
    c.Flush: _nothing,
    c.Checkpoint: _checkpoint,
    c.ListCheckpoints: _checkpoints,
    c.Backup: _backup,
    c.SetRetention: _set_retention,
    c.Restore: _restore,
    c.Promote: _nothing,
    c.SetShardMap: _nothing,
    c.PauseWrites: _nothing,
    c.ResumeWrites: _nothing,
    c.Lookup: _lookup,
    c.LookupPooled: _pooled,
    c.ReadRows: _read,
    c.Update: _update,
    c.UpdatePooled: _update_pooled,
    c.UpdateRanks: _update_ranks,
    c.Assign: _assign,
    c.DeleteRows: _delete,
    c.ClearTable: _clear,
    c.PutRows: _put,
    c.OpenScan: _open_scan,
    c.ReadScan: _read_scan,
    c.CloseScan: _close_scan,
    c.OpenSession: _open,
    c.JoinSession: _join,
    c.RenewLease: _nothing,
    c.CloseSession: _close,
    c.EndSession: _end,
    c.Announce: _announce,
    c.LookupStep: _lookup_step,
    c.LookupStepPooled: _lookup_step_pooled,
    c.ReadStep: _read_step,
    c.UpdateStep: _update_step,
    c.ReleaseStep: _end_step,
    c.SkipStep: _end_step,
    c.PutStepRows: _put_step,
    c.ExportProfile: _nothing,
    c.ImportProfile: _nothing,
    c.GetHotSet: _nothing,
    c.PinHotSet: _nothing,
    c.UnpinHotSet: _nothing,
    c.ClearCounts: _nothing,
    c.WarmCache: _nothing,
}
"""What each command does to the model."""

"""Random lists of commands: most of them are taken, some are refused, and each verb comes up.

An author knows the model, so that it names tables, steps and members that are there, and rows of
their widths; now and then it makes a mistake. It is a pure function of its seed and of the model.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from embstore import commands as c
from embstore.cache.policies import POLICIES
from embstore.checks.sessions import LEASE_MS_MAX, MS_MAX
from embstore.config import OPTIMIZERS, Constant, Normal, TableConfig, Uniform
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from embstore.sharding import ShardMap
from tests.commands.model import Model, Session
from tests.conformance.spread import spread

TABLES = "a", "b", "part/c", "d", "s", "part/s"
SPARSE = "s", "part/s"
"""Those of sparse keys."""
SESSIONS = "train", "other"
WAITING = {"lease_ms": LEASE_MS_MAX, "rank_timeout_ms": MS_MAX}
MISTAKE = 0.04
"""How often a name or key is none that there is."""


class Author:
    """Writes commands."""

    def __init__(self, seed: int, model: Model) -> None:
        self._rng = np.random.default_rng(seed)
        self._model = model
        self._labels = 0
        self._scans = 0

    def next(self) -> c.Command[Any]:
        """Return the next command."""
        if not self._model.store.tables():
            return self._create_table()
        return self.write(self._one_of(_EVERY))

    def write(self, kind: Any) -> c.Command[Any]:
        """Return a command of one kind."""
        written: c.Command[Any] = _WRITERS[kind](self)
        return written

    # Choices

    def _one_of(self, choices: Any) -> Any:
        return choices[self._rng.integers(len(choices))]

    def _errs(self) -> bool:
        return bool(self._rng.random() < MISTAKE)

    def _name(self) -> str:
        return "none" if self._errs() else self._one_of(self._model.store.tables())

    def _names(self) -> list[str]:
        known = self._model.store.tables()
        some = self._rng.permutation(known)[: self._rng.integers(1, 3)].tolist()
        return some + some[:1] if self._errs() else some

    def _dims(self, name: str) -> tuple[int, int, int]:
        """Return rows, dim and state_dim of a table, or of none; 40 rows of sparse keys."""
        if name not in self._model.store.tables():
            return 9, 3, 0
        table = self._model.store.table(name)
        rows = 40 if name in SPARSE else table.rows
        return rows, table.config.dim, table.config.state_dim

    def _keys(self, name: str, count: int | None = None) -> Any:
        rows, *_ = self._dims(name)
        count = int(self._rng.integers(0, 12)) if count is None else count
        keys = self._rng.integers(0, min(rows, 40), count)
        if name in SPARSE:
            keys = spread(keys)
        if count and self._errs():
            keys[0] = -1 if name in SPARSE else rows
        return keys

    def _unique_keys(self, name: str, count: int | None = None) -> Any:
        """Return keys as profiles and hot sets have them, which cannot hold -1."""
        keys = np.unique(self._keys(name, count))
        return keys[keys != -1]

    def _rows(self, count: int, dim: int) -> Any:
        rows = self._rng.normal(size=(count, dim)).astype(np.float32)
        if rows.size and self._errs():
            rows[0, 0] = np.inf
        return rows

    def _bags(self, count: int) -> c.Bags:
        inner = np.sort(self._rng.integers(0, count + 1, 2))
        mode = self._one_of(["sum", "mean"])
        factors = self._rng.random(count).astype(np.float32)
        weights = factors if mode == "sum" and self._rng.random() < 0.5 else None
        return c.Bags(np.array([0, *inner, count], np.int64), mode, weights)

    def _options(self, tables: Sequence[str] | None = None) -> c.UpdateOptions:
        rate, scale = self._one_of([None, None, 0.05, 0.0]), self._one_of([1.0, 0.5])
        skips = self._one_of(["refuse", "skip"])
        if self._rng.random() < 0.3:
            named = self._model.store.tables() if tables is None else tables
            rates = {name: 0.1 * place for place, name in enumerate(named) if place}
            return c.UpdateOptions(None, scale, skips, rates)
        return c.UpdateOptions(rate, scale, skips)

    def _table_keys(self, name: str) -> c.TableKeys:
        return c.TableKeys(name, None, self._keys(name))

    def _table_gradients(self, name: str) -> c.TableGradients:
        keys = self._keys(name)
        return c.TableGradients(name, None, keys, self._rows(len(keys), self._dims(name)[1]))

    # Tables and durability

    def _create_table(self) -> c.CreateTable:
        name, dim = self._one_of(TABLES), int(self._one_of([3, 8, 33]))
        made: Any = OPTIMIZERS[self._one_of(sorted(OPTIMIZERS))]
        initializer = self._one_of([Uniform(-0.5, 0.5), Normal(0.0, 1.0), Constant(0.25)])
        rows = None if name in SPARSE else int(self._rng.integers(30, 60))
        if name in self._model.store.tables() and not self._errs():
            return c.CreateTable(self._model.store.table(name).config)
        config = TableConfig.checked(
            name,
            dim=dim,
            rows=rows,
            optimizer=made(0.1),
            initializer=initializer,
            key_space="sparse" if name in SPARSE else "dense",
        )
        return c.CreateTable(config)

    def _grow(self) -> c.GrowTable:
        name = self._name()
        return c.GrowTable(name, None, self._dims(name)[0] + int(self._rng.integers(-1, 9)))

    def _label(self) -> str:
        return self._one_of(sorted(self._model.kept) or ["none"])

    def _checkpoint(self) -> c.Checkpoint:
        self._labels += not self._errs()
        return c.Checkpoint(f"label-{self._labels}", {"at": self._labels})

    # Rows

    def _lookup_pooled(self) -> c.LookupPooled:
        return c.LookupPooled(tuple(map(self._pooled_keys, self._names())))

    def _pooled_keys(self, name: str) -> c.PooledKeys:
        keys = self._keys(name)
        return c.PooledKeys(name, None, keys, self._bags(len(keys)))

    def _update_pooled(self) -> c.UpdatePooled:
        parts = tuple(map(self._pooled_gradients, self._names()))
        return c.UpdatePooled(parts, self._options())

    def _pooled_gradients(self, name: str) -> c.PooledGradients:
        keys = self._keys(name)
        bags = self._bags(len(keys))
        rows = self._rows(len(bags.offsets) - 1, self._dims(name)[1])
        return c.PooledGradients(name, None, keys, rows, bags)

    def _update_ranks(self) -> c.UpdateRanks:
        ranks = [tuple(map(self._table_gradients, self._names())) for _ in range(2)]
        return c.UpdateRanks(tuple(map(c.Rank, ranks)), self._options())

    def _assign(self) -> c.Assign:
        part = self._table_keys(self._name())
        return c.Assign(part, self._rows(len(part.keys), self._dims(part.table)[1]))

    def _put_rows(self) -> c.PutRows:
        part = self._table_keys(self._name())
        _, dim, state_dim = self._dims(part.table)
        count = len(part.keys)
        return c.PutRows(part, self._rows(count, dim), abs(self._rows(count, state_dim)), 3)

    # Scans

    def _open_scan(self) -> c.OpenScan:
        self._scans += 1
        label = self._label() if self._rng.random() < 0.5 else None
        since = self._label() if self._rng.random() < 0.25 else None
        return c.OpenScan(f"the scan of number {self._scans}", self._name(), None, label, since)

    def _scan(self) -> tuple[str, str]:
        """Return the name of a scan, and of its table."""
        found = [(name, scan.table) for name, scan in self._model.scans.items()]
        none = ("a scan that nobody opened", self._name())
        return none if self._errs() or not found else found[self._rng.integers(len(found))]

    def _read_scan(self) -> c.ReadScan:
        scan, table = self._scan()
        low, rows = int(self._rng.integers(0, 40)), int(self._rng.integers(1, 30))
        if table in SPARSE:  # all of them: their order is that of the files
            low, rows = 0, 99
        with_state, deleted = bool(self._rng.integers(2)), bool(self._rng.integers(4) == 0)
        return c.ReadScan(scan, table, low, rows, with_state, deleted)

    # Sessions

    def _open_session(self) -> c.OpenSession:
        name = self._one_of(SESSIONS)
        planner = self._one_of(["per_step", "window", "group:2"])
        waits: Any = self._one_of(["late", "none", "mixed"])
        tables = tuple(self._names())
        return c.OpenSession(name, tables, planner=planner, waits=waits, **WAITING)

    def _join_session(self) -> c.JoinSession:
        name = self._one_of(SESSIONS)
        return c.JoinSession(name, int(self._errs()), f"a member of {name}, rank 0")

    def _member(self) -> str:
        members = [m for s in self._model.sessions.values() for m in s.members]
        return "nobody of any session" if self._errs() or not members else self._one_of(members)

    def _session(self, member: str) -> Session:
        found = (s for s in self._model.sessions.values() if member in s.members)
        return next(found, Session((), 1))

    def _turn(self, session: Session) -> int:
        """Return a step whose rows can be had at once: no call here may wait."""
        return min(session.announced, default=1)

    def _announced(self, session: Session) -> dict[str, Any]:
        shares = session.announced.get(self._turn(session), {})
        return next(iter(shares.values()), {})

    def _announce(self) -> c.Announce:
        member = self._member()
        session = self._session(member)
        first = max(session.announced, default=session.last_step) + 1
        steps = []
        for number in range(first, first + 2):
            tables = [
                c.StepTable(name, np.unique(self._keys(name)))
                for name in session.tables
                if self._rng.random() < 0.8
            ]
            steps.append(c.StepKeys(number, tuple(tables)))
        return c.Announce(member, tuple(steps))

    def _lookup_step(self) -> c.LookupStep:
        member = self._member()
        return c.LookupStep(member, self._turn(self._session(member)))

    def _lookup_step_pooled(self) -> c.LookupStepPooled:
        member = self._member()
        session = self._session(member)
        tables = []
        for name, keys in self._announced(session).items():
            inverse = self._rng.integers(0, max(len(keys), 1), 5 * bool(len(keys)))
            bags = self._bags(len(inverse))
            tables.append(c.StepBags(name, inverse.astype(np.uint32), bags))
        return c.LookupStepPooled(member, self._turn(session), tuple(tables))

    def _read_step(self) -> c.ReadStep:
        member = self._member()
        session = self._session(member)
        tables = [
            c.StepPositions(name, np.arange(0, len(keys), 2, np.uint32))
            for name, keys in self._announced(session).items()
        ]
        return c.ReadStep(member, self._turn(session), tuple(tables))

    def _update_step(self) -> c.UpdateStep:
        member = self._member()
        session = self._session(member)
        tables = []
        for name, keys in self._announced(session).items():
            positions = None
            if self._rng.random() < 0.3:  # some keys have no gradient
                positions = np.flatnonzero(self._rng.random(len(keys)) < 0.5).astype(np.uint32)
            count = len(keys) if positions is None else len(positions)
            rows = self._rows(count, self._dims(name)[1])
            tables.append(c.StepGradients(name, rows, positions))
        return c.UpdateStep(
            member, self._turn(session), tuple(tables), self._options(session.tables)
        )

    def _end_step(self, kind: Any) -> Any:
        member = self._member()
        return kind(member, self._turn(self._session(member)))

    def _deleting(self) -> tuple[str, None, str | None]:
        """Return a table, and a member of the session that has it, if it is asked for one."""
        member = self._member() if self._rng.random() < 0.5 else None
        tables = [] if member is None else self._session(member).tables
        return (self._one_of(tables) if tables else self._name()), None, member

    def _delete_rows(self) -> c.DeleteRows:
        name, _, member = self._deleting()
        return c.DeleteRows(self._table_keys(name), member=member)

    def _put_step_rows(self) -> c.PutStepRows:
        member = self._member()
        puts = []
        for name in self._session(member).tables[:1]:
            _, dim, state_dim = self._dims(name)
            keys = np.unique(self._keys(name))
            state = abs(self._rows(len(keys), state_dim))
            puts.append(c.StepPut(name, keys, self._rows(len(keys), dim), state, 1))
        return c.PutStepRows(member, tuple(puts))

    # Access frequencies

    def _import_profile(self) -> c.ImportProfile:
        name = self._name()
        keys = self._unique_keys(name, 5)
        counts = np.arange(1, len(keys) + 1)
        table = TableProfile(name, 0, keys, counts, int(counts.sum()))
        return c.ImportProfile(Profile({name: table}), {})

    def _pin_hot_set(self) -> c.PinHotSet:
        name = self._name()
        version = int(self._rng.integers(1, 99))
        return c.PinHotSet(HotSet({name: self._unique_keys(name)}, version))


def _plain(kind: Any, *arguments: Callable[[Author], Any]) -> Callable[[Author], Any]:
    """Return what writes a command of such arguments."""
    return lambda author: kind(*(argument(author) for argument in arguments))


def _no_id(author: Author) -> None:
    """Name a table by its name alone."""


_WRITERS: dict[Any, Callable[[Author], Any]] = {
    c.GetServerInfo: _plain(c.GetServerInfo),
    c.GetStats: _plain(c.GetStats, Author._name),
    c.SetPolicy: _plain(c.SetPolicy, lambda a: a._one_of([*POLICIES, "none"])),
    c.ResizeCache: _plain(c.ResizeCache, lambda a: int(a._one_of([1, 1 << 20, 2 << 20]))),
    c.CheckIntegrity: _plain(c.CheckIntegrity),
    c.CreateTable: Author._create_table,
    c.GetTable: _plain(c.GetTable, Author._name),
    c.ListTables: _plain(c.ListTables),
    c.DropTable: _plain(c.DropTable, Author._name),
    c.ClearTable: lambda a: c.ClearTable(*a._deleting()),
    c.GrowTable: Author._grow,
    c.SetLearningRate: _plain(
        c.SetLearningRate, Author._name, _no_id, lambda a: a._one_of([0.5, 0.25, -1.0])
    ),
    c.GetDigest: _plain(c.GetDigest, Author._name),
    c.GetLeaves: _plain(c.GetLeaves, Author._name),
    c.Flush: _plain(c.Flush, Author._name),
    c.Checkpoint: Author._checkpoint,
    c.ListCheckpoints: _plain(c.ListCheckpoints),
    c.Backup: lambda a: c.Backup("backups", a._label() if a._errs() else None),
    c.SetRetention: _plain(
        c.SetRetention, Author._label, lambda a: a._one_of(get_args(c.Retention))
    ),
    c.Restore: _plain(c.Restore, Author._label, Author._errs),
    c.Promote: _plain(c.Promote),
    c.SetShardMap: _plain(c.SetShardMap, lambda _: ShardMap.even("none", ["127.0.0.1:1"])),
    c.PauseWrites: _plain(c.PauseWrites, lambda _: "somebody"),
    c.ResumeWrites: _plain(c.ResumeWrites),
    c.Lookup: lambda a: c.Lookup(tuple(map(a._table_keys, a._names()))),
    c.LookupPooled: Author._lookup_pooled,
    c.ReadRows: lambda a: c.ReadRows(a._table_keys(a._name())),
    c.Update: lambda a: c.Update(tuple(map(a._table_gradients, a._names())), a._options()),
    c.UpdatePooled: Author._update_pooled,
    c.UpdateRanks: Author._update_ranks,
    c.Assign: Author._assign,
    c.DeleteRows: Author._delete_rows,
    c.PutRows: Author._put_rows,
    c.OpenScan: Author._open_scan,
    c.ReadScan: Author._read_scan,
    c.CloseScan: lambda a: c.CloseScan(*a._scan()),
    c.OpenSession: Author._open_session,
    c.JoinSession: Author._join_session,
    c.RenewLease: _plain(c.RenewLease, Author._member),
    c.CloseSession: _plain(c.CloseSession, Author._member, Author._errs),
    c.EndSession: _plain(c.EndSession, lambda a: a._one_of(SESSIONS)),
    c.Announce: Author._announce,
    c.LookupStep: Author._lookup_step,
    c.LookupStepPooled: Author._lookup_step_pooled,
    c.ReadStep: Author._read_step,
    c.UpdateStep: Author._update_step,
    c.ReleaseStep: lambda a: a._end_step(c.ReleaseStep),
    c.SkipStep: lambda a: a._end_step(c.SkipStep),
    c.PutStepRows: Author._put_step_rows,
    c.ExportProfile: _plain(c.ExportProfile, lambda a: a._one_of(["counted", "imported"])),
    c.ImportProfile: Author._import_profile,
    c.GetHotSet: _plain(c.GetHotSet),
    c.PinHotSet: Author._pin_hot_set,
    c.UnpinHotSet: _plain(c.UnpinHotSet),
    c.ClearCounts: _plain(c.ClearCounts),
    c.WarmCache: _plain(c.WarmCache, lambda a: a._one_of([0.5, 1.0, 2.0])),
}

_RARE = {
    *(c.DropTable, c.ClearTable, c.SetRetention, c.Restore),
    *(c.CloseSession, c.CloseScan, c.EndSession),
}
"""What takes away what other commands need."""
_PAUSES = {c.PauseWrites, c.ResumeWrites}
"""After which nothing is written until the other comes."""
_EVERY = [k for k in _WRITERS if k not in _PAUSES for _ in range(1 if k in _RARE else 5)]

"""The hot rows at the trainer, with their optimizer state. They are looked up and trained without
the store.

A replica stores the rows of a hot set in **slots**. Per table, it has one array of weights and one
array of state, and the table's t and learning rate. It trains rows by `embstore.arithmetic`, as the
engine would. So after any number of updates, rows, state and t are the same as if the store had
trained them, bit for bit. The replica and the store exchange rows; they never average rows:

    pull     rows of the store are copied here                    stale -> not stale
    update   rows and t change here                               dirty; t is ahead of the store's
    push     dirty rows are sent to the store, with the number    not dirty; t is the store's
             of updates, which the store adds to t

A **stale** row was never pulled, or was changed in the store since it was pulled; it must not be
looked up. A **dirty** row was changed here since it was pushed. While there are dirty rows, or t is
ahead of the store's t, the replica pulls nothing. No other client may write to these rows
meanwhile: the user of a replica locks their tables by a session, as `run.py` does.

A push is one command for all tables. So the store always has the state of one exchange, even after
a crash between two exchanges. The trainer therefore pushes before the dirty rows exceed the size of
a call (`unsent_bytes`). If it is unknown whether a push arrived, the next push finds this out from
the table's t, which only this replica can have changed.

If there are several ranks, each has a replica of the same rows. A hook of the caller exchanges the
sums of gradients (`replicas.ranks`); every rank adds the sums in rank order (contract.md, rule 6)
and applies them. A learning rate may change at the store after one rank has pulled and before
another rank pulls. This change must not make the replicas differ, so after a refresh all ranks
adopt the learning rates of rank 0. Rejected: rank 0 trains for all ranks. Then rows would have to
be sent instead of sums. Also rejected: each rank pushes a part of the rows, which would take
several commands.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from embstore.arithmetic import pool_rows
from embstore.arrays import Keys, Rows, as_pair, on_host
from embstore.commands import LearningRate, OnNonfinite, UpdateOptions
from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.handles import parts
from embstore.handles.sessions import SomeGradients, StepBags
from embstore.profiles.hotset import HotSet
from embstore.results import AcknowledgedUpdate
from embstore_training.bags import Of, keyed
from embstore_training.hotcold.rows import HotTable
from embstore_training.hotcold.update import Receipt, change
from embstore_training.read_ahead import OnceKeys
from embstore_training.replicas.ranks import AllGather
from embstore_training.replicas.rows import HostRows, Slots, TrainersRows
from embstore_training.replicas.update import Sums, Trained, agreed, checked


class _Push(NamedTuple):
    """A push of which it is unknown whether it succeeded."""

    t: dict[str, int]  # t of the tables after the push
    rows: int
    bytes: int


class Replica:
    """The hot rows of some tables, in NumPy arrays. Threads must not share a replica."""

    def __init__(
        self,
        store: Any,
        hot_set: HotSet | Mapping[str, ArrayLike],
        *,
        tables: Iterable[str] | None = None,
    ) -> None:
        """Prepare slots for the rows of `hot_set`; `pull` reads the rows.

        Parameters
        ----------
        store : an `embstore.Store`, embedded or of a server
        tables : the tables of the hot set whose rows are wanted; None: all tables

        Raises
        ------
        TableNotFoundError : the store has no such table.
        InvalidArgumentError : the hot set lacks a table, or has keys beyond a table.
        """
        self.hot_set = HotSet.of(hot_set)
        self.store_calls = self.pulled_rows = self.pushed_rows = 0
        self.pulled_bytes = self.pushed_bytes = 0
        self._store = store
        self._receipt = Receipt()  # Of the last update, which may not be written completely.
        self._pushing: _Push | None = None
        names = [*self.hot_set.tables] if tables is None else [*tables]
        self._tables = {name: self._open(name) for name in names}

    def _open(self, name: str) -> HotTable:
        if name not in self.hot_set.tables:
            raise InvalidArgumentError(
                f"expected a table of the hot set, one of {sorted(self.hot_set.tables)}, found "
                f"{name!r}"
            )
        keys = self.hot_set.tables[name]
        handle = self._called(self._store.table, name)
        config: TableConfig = self._called(lambda: handle.config)
        return HotTable(handle, config, keys, self._make_rows(config, len(keys)))

    def _make_rows(self, config: TableConfig, count: int) -> TrainersRows:
        return HostRows(config, count)

    def _called(self, call: Any, *args: Any) -> Any:
        self.store_calls += 1
        return call(*args)

    @property
    def t(self) -> dict[str, int]:
        """Each table's t in this replica."""
        self._receipt.synchronize()
        return {name: table.t for name, table in self._tables.items()}

    @property
    def is_ahead(self) -> bool:
        """Whether this replica has updates that the store lacks. Any thread."""
        return any(table.t != table.stored_t for table in self._tables.values())

    @property
    def row_count(self) -> int:
        """The number of rows of all tables."""
        return sum(len(table.index.keys) for table in self._tables.values())

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that a push would send now."""
        self._receipt.synchronize()
        return sum(table.dirty_count * table.row_bytes for table in self._tables.values())

    @property
    def hot_bytes(self) -> int:
        """The number of bytes that a push of all hot rows would send."""
        return sum(len(t.index.keys) * t.row_bytes for t in self._tables.values())

    def push_bytes(self, counts: Mapping[str, int]) -> int:
        """Return the most bytes that a push of `counts` hot rows by table would send."""
        return sum(self._table(name).push_bytes(count) for name, count in counts.items())

    # Pulling

    def pull(self, keys: Mapping[str, ArrayLike] | None = None) -> int:
        """Read rows, and each table's t and learning rate, from the store; return the number of
        rows.

        Parameters
        ----------
        keys : by table, the keys of the wanted rows; None: all rows of all tables

        Raises
        ------
        InvalidArgumentError : a key is not hot, or updates of this replica were not pushed.
        """
        if keys is None:
            return self._pull({n: np.arange(len(t.index.keys)) for n, t in self._tables.items()})
        return self._pull({name: self._table(name).slots(k) for name, k in keys.items()})

    def refresh(self) -> int:
        """Read the stale rows, and each table's t and learning rate; return the number of rows."""
        return self._pull({n: np.flatnonzero(t.is_stale) for n, t in self._tables.items()})

    def mark_stale(self, keys: Mapping[str, Keys]) -> None:
        """Mark the hot rows of `keys` as stale, because the store may change these rows.

        Another thread can call this while no other method runs.
        """
        for name in keys.keys() & self._tables.keys():
            self._tables[name].mark_stale(keys[name])

    @property
    def stale_keys(self) -> dict[str, Keys]:
        """The keys of the stale rows."""
        return {name: t.index.keys[t.is_stale] for name, t in self._tables.items()}

    def _pull(self, wanted: Mapping[str, Slots]) -> int:
        self._receipt.synchronize()
        unsent = [name for name, table in self._tables.items() if table.t != table.stored_t]
        if unsent:
            raise InvalidArgumentError(
                "expected trained rows to be pushed before others are pulled, found tables "
                f"{unsent} trained since the last push: push first"
            )
        facts = self._called(self._store.table_facts)
        for name, slots in wanted.items():
            table = self._tables[name]
            if name not in facts:
                raise TableNotFoundError(f"table {name!r} no longer exists")
            table.take(facts[name])
            rows_max = max(1, self._store.limits.call_bytes_max // table.row_bytes)
            for count in table.pulled(slots, rows_max, self._called):
                self.pulled_rows += count
                self.pulled_bytes += count * table.row_bytes
        return sum(map(len, wanted.values()))

    # Training

    def lookup(self, keys: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Return copies of the rows of hot keys, (n, dim) by table, in the order of the keys.

        Raises
        ------
        InvalidArgumentError : a key is not hot, or its row is stale.
        """
        self._receipt.synchronize()
        tables = {name: self._table(name) for name in keys}
        return {n: t.rows.take(t.pulled_slots(keys[n])) for n, t in tables.items()}

    def update(
        self,
        gradients: Mapping[str, tuple[ArrayLike, Any]],
        *,
        learning_rate: LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
        all_gather: AllGather | None = None,
        receipt: Receipt | None = None,
    ) -> AcknowledgedUpdate:
        """Train hot rows by one update of all named tables; if it fails, no table changes.

        Parameters
        ----------
        gradients : by table, keys (n,) in any order, repeated or not, and gradients (n, dim)
        learning_rate : for all tables, or by table; None: the tables' rates at the last pull
        all_gather : the hook of several ranks, which all call this; sums are added in rank order
        receipt : a new receipt, which shows whether an interrupted update was applied

        Returns
        -------
        Each table's t, and the command number 0, because the store does not have the update yet.

        Raises
        ------
        InvalidArgumentError : a shape or dtype is wrong; a key is not hot; a sum is not finite; or
            ranks have different options or replicas. Nothing has changed.
        """
        self._receipt.synchronize()
        if self._pushing is not None:
            raise InvalidArgumentError(
                "expected the last push to have succeeded before more is trained; push again"
            )
        options = checked(parts.options(learning_rate, gradient_scale, on_nonfinite, self._tables))
        pairs = {name: as_pair(given, name) for name, given in gradients.items()}
        sums = self._agreed(pairs, options, all_gather)
        if sums is None:
            return AcknowledgedUpdate(0, self.t, skipped=True)
        self._receipt = receipt or Receipt()
        self._receipt.changes = [
            change(self._tables[name], of_table, options) for name, of_table in sums.items()
        ]
        self._receipt.synchronize()
        return AcknowledgedUpdate(0, self.t)

    def _agreed(
        self,
        given: Mapping[str, tuple[Any, Any]],
        options: UpdateOptions,
        all_gather: AllGather | None,
    ) -> dict[str, Sums] | None:
        """Return the scaled sums of all ranks; see `replicas.update.agreed`."""
        own = {
            name: self._table(name).summed(keys, self.to_host(gradients))
            for name, (keys, gradients) in given.items()
        }
        return agreed(own, options, self._trained, all_gather)

    @property
    def _trained(self) -> dict[str, Trained]:
        return {name: table.trained for name, table in self._tables.items()}

    def _table(self, name: Any) -> HotTable:
        if name not in self._tables:
            raise InvalidArgumentError(
                f"expected tables with hot rows here, of {sorted(self._tables)}, found {name!r}"
            )
        return self._tables[name]

    # Conversions between rows and gradients of the trainer, and those of the store

    def pooled(self, name: str, keys: Keys, bags: StepBags) -> Any:
        """Return the pooled rows of bags of a table's distinct hot keys, (bags, dim)."""
        rows = self.to_host(self.lookup({name: keys})[name])
        assert bags.offsets is not None, "bags have bounds"
        return self.to_trainer(pool_rows(rows[bags.inverse], bags.offsets, bags.mode, bags.weights))

    def given(
        self,
        name: str,
        keys: Mapping[str, Keys],
        once: Mapping[str, OnceKeys],
        of: Of,
        rows: Any,
    ) -> tuple[Keys, Any]:
        """Return a step's gradients of a table as keys and gradients for `update`.

        Parameters
        ----------
        keys, once : the step's keys, of all tables
        of, rows : the unit of the gradients (`embstore_training.bags`), and the gradients
        """
        rows = self.to_store(rows)
        return (keys[name], rows) if of == "keys" else keyed(name, once[name], of, rows)

    def to_store(self, rows: Any) -> Any:
        """Return gradients of the trainer in a form that a session of the run accepts."""
        if isinstance(rows, SomeGradients):
            return rows._replace(rows=on_host(self.to_host(rows.rows)))
        return on_host(self.to_host(rows))

    def to_trainer(self, rows: Rows) -> Any:
        """Return rows on the host in the form that `lookup` returns."""
        return rows

    def to_host(self, rows: Any) -> Any:
        """Return rows of the trainer as an array on the host, and any other object unchanged."""
        return rows

    # Pushing

    def push(self, member: str) -> AcknowledgedUpdate | None:
        """Send the rows trained since the last push, in one command; None: there are no such rows.

        Parameters
        ----------
        member : a member of the session that locks the tables; all its announced steps must be
            finished

        Raises
        ------
        EmbstoreError : the store's error. The rows stay in the replica, and can be pushed again.
        """
        self._receipt.synchronize()
        if self._pushing is not None:  # It is unknown whether the last push arrived: ask the store.
            name, t = next(iter(self._pushing.t.items()))
            if self._called(lambda: self._tables[name].handle.t) == t:
                self.note_pushed()
        rows = {name: t.unsent() for name, t in self._tables.items() if t.t != t.stored_t}
        if not rows:
            return None
        count = sum(len(keys) for keys, *_ in rows.values())
        self._pushing = _Push({n: self._tables[n].t for n in rows}, count, self.unsent_bytes)
        done: AcknowledgedUpdate = self._called(self._store.sessions.put_rows, member, rows)
        self.note_pushed()
        return done

    def note_pushed(self) -> None:
        """Note that the store has all updates of this replica, whichever rank has pushed them."""
        for table in self._tables.values():
            table.note_pushed()
        pushed, self._pushing = self._pushing, None
        if pushed is not None:
            self.pushed_rows += pushed.rows
            self.pushed_bytes += pushed.bytes

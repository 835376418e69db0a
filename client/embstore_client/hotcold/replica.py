"""The hot rows at the trainer, with their optimizer state: looked up and trained without the store.

A replica holds the rows of a hot set in **slots**, one array of weights and one of state a table,
and the table's t and learning rate. It trains them by `embstore.arithmetic`, as the engine would,
so that rows, state and t are after any number of updates what they would be in the store, bit for
bit. Where rows are is exchanged, not averaged:

    pull     the store's rows come here                           stale -> not stale
    update   rows and t change here                               dirty; t is ahead of the store's
    push     the dirty rows go to the store, with the t to add    not dirty; t is the store's

A **stale** row was changed in the store since it was pulled, or never pulled; it may not be looked
up. A **dirty** row was changed here since it was pushed; while there are any, or t is ahead,
nothing may be pulled. Nobody else may write to these rows meanwhile: whoever uses a replica holds
its tables by a session (`run.py` does).

A push is one command for all tables: the store is as at one exchange or as at the next, whatever
happens in between. So whoever trains pushes before the dirty rows are more than a call takes
(`unsent_bytes`). If it is not known whether a push arrived, the next one finds out by the table's
t, which only this replica can have moved.

An update is computed beside the rows and then put in place, from a list that is kept until all of
it is done. An interrupt in between (Ctrl-C) leaves that list, and what comes next does it again: to
put a row in place twice is the same as once. So an update happens whole or not at all here, too. A
**receipt** holds the list, and whoever gave the receipt can tell by it whether the update is taken:
both become so by one assignment.

Of several ranks each has a replica of the same rows, and sums of gradients meet in a hook of the
caller (`ranks.py`), are added in rank order (contract.md, rule 6) and applied by each rank alike.
With them ranks compare each table's t and learning rate, without which replicas would part in
silence. A rate that changes at the store while one rank has pulled and another has not is none to
part by: after a refresh all take rank 0's.
Rejected: rank 0 training for all, who would have to send rows instead of sums; and each rank
pushing its part, which would be as many commands.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from embstore.arithmetic import sum_by_key, unique, update_scalars
from embstore.arrays import Keys, Rows, as_keys, as_pair, as_rows
from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.feed.port import OnNonfinite
from embstore.frequency.hotset import HotSet
from embstore.results import AcknowledgedUpdate
from embstore_client.hotcold.ranks import AllGather, Verb, float_bits, float_of, meet
from embstore_client.hotcold.rows import HostRows, HotRows, HotTable, Slots
from embstore_client.hotcold.update import Options, Sums, check_alike, first_nonfinite, scaled

_T_MAX = 2**64 - 1


class _Change(NamedTuple):
    """What one update makes of one table; to put it in place twice is the same as once."""

    table: HotTable
    slots: Slots
    weights: Any
    state: Any
    t: int
    dirty_count: int


class Receipt:
    """By which whoever updates can tell whether it was done, though it ended by an interrupt."""

    def __init__(self) -> None:
        self._changes: list[_Change] | None = None  # None: not taken. Empty: in place.

    @property
    def is_taken(self) -> bool:
        """Whether the update is one of the replica's: it must not be done again."""
        return self._changes is not None


class _Push(NamedTuple):
    """A push whose end is not seen yet."""

    t: dict[str, int]  # Which the tables get by it.
    rows: int
    bytes: int


class Replica:
    """The hot rows of some tables, in NumPy. Not to be shared between threads."""

    def __init__(self, store: Any, hot_set: HotSet, *, tables: Iterable[str] | None = None) -> None:
        """Prepare the rows of `hot_set`; they are pulled by `pull`.

        Parameters
        ----------
        store : an `embstore.Store` or a `RemoteStore`
        tables : those of the hot set whose rows are wanted; None: all

        Raises
        ------
        TableNotFoundError : the store has no such table.
        InvalidArgumentError : the hot set does not name a table, or has keys beyond it.
        """
        self.hot_set = hot_set
        self.store_calls = 0
        self.pulled_rows = self.pushed_rows = 0
        self.pulled_bytes = self.pushed_bytes = 0
        self._store = store
        self._receipt = Receipt()  # Of the last update, whose changes may not all be in place.
        self._pushing: _Push | None = None
        names = [*hot_set.tables] if tables is None else [*tables]
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
        if len(keys) and not 0 <= keys[0] <= keys[-1] < config.rows:
            raise InvalidArgumentError(
                f"table {name!r}: expected hot keys in [0, {config.rows}), found "
                f"{keys[0] if keys[0] < 0 else keys[-1]}"
            )
        return HotTable(handle, config, keys, self._make_rows(config, len(keys)))

    def _make_rows(self, config: TableConfig, count: int) -> HotRows:
        return HostRows(config, count)

    def _called(self, call: Any, *args: Any) -> Any:
        self.store_calls += 1
        return call(*args)

    # What it is

    @property
    def t(self) -> dict[str, int]:
        """Each table's t here."""
        self._settle()
        return {name: table.t for name, table in self._tables.items()}

    @property
    def row_count(self) -> int:
        """Rows of all tables."""
        return sum(len(table.index.keys) for table in self._tables.values())

    @property
    def unsent_bytes(self) -> int:
        """Bytes that a push now would send."""
        self._settle()
        return sum(table.dirty_count * table.row_bytes for table in self._tables.values())

    @property
    def hot_bytes(self) -> int:
        """Bytes that a push of all hot rows would send."""
        return self.push_bytes({n: len(t.index.keys) for n, t in self._tables.items()})

    def push_bytes(self, counts: Mapping[str, int]) -> int:
        """Return how many bytes a push of so many hot rows of each table would send, at most."""
        sizes = []
        for name, count in counts.items():
            table = self._table(name)
            sizes.append(min(count, len(table.index.keys)) * table.row_bytes)
        return sum(sizes)

    # Pulling

    def pull(self, keys: Mapping[str, ArrayLike] | None = None) -> int:
        """Read rows of some tables from the store, with t and learning rate; return how many.

        Parameters
        ----------
        keys : by table, those of its rows that are wanted; None: all rows of all tables

        Raises
        ------
        InvalidArgumentError : a key is not hot; or something was trained here and not pushed.
        """
        if keys is None:
            return self._pull({n: np.arange(len(t.index.keys)) for n, t in self._tables.items()})
        return self._pull({name: self._table(name).slots(k) for name, k in keys.items()})

    def refresh(self) -> int:
        """Read the stale rows, and of each table t and learning rate; return how many rows."""
        return self._pull({n: np.flatnonzero(t.is_stale) for n, t in self._tables.items()})

    def mark_stale(self, keys: Mapping[str, Keys]) -> None:
        """Note that the store's rows of `keys` may change; those that are not hot are passed over.

        May be called from another thread while nothing else is.
        """
        for name in keys.keys() & self._tables.keys():
            table = self._tables[name]
            slots, is_hot = table.index.find(keys[name])
            table.is_stale[slots[is_hot]] = True

    @property
    def stale_keys(self) -> dict[str, Keys]:
        """The keys of the stale rows."""
        return {name: t.index.keys[t.is_stale] for name, t in self._tables.items()}

    def _pull(self, wanted: Mapping[str, Slots]) -> int:
        self._settle()
        unsent = [name for name, table in self._tables.items() if table.t != table.stored_t]
        if unsent:
            raise InvalidArgumentError(
                f"expected rows to be pushed before others are pulled, found tables {unsent} "
                "trained since the last push"
            )
        facts = self._called(self._store.table_facts)
        for name, slots in wanted.items():
            table = self._tables[name]
            if name not in facts:
                raise TableNotFoundError(f"table {name!r} no longer exists")
            table.t = table.stored_t = facts[name].t
            table.learning_rate = facts[name].learning_rate
            for part in _parts(slots, self._store.limits.call_bytes_max // table.row_bytes):
                self._read(table, part)
        return sum(map(len, wanted.values()))

    def _read(self, table: HotTable, slots: Slots) -> None:
        weights, state = self._called(table.handle.read_rows, table.index.keys[slots])
        table.rows.write(slots, weights, state)
        table.is_stale[slots] = False
        self.pulled_rows += len(slots)
        self.pulled_bytes += len(slots) * table.row_bytes

    def take_rates(self, all_gather: AllGather | None) -> None:
        """Take rank 0's learning rates: another rank may have pulled them before they changed."""
        tables = [self._tables[name] for name in sorted(self._tables)]
        rates = [float_bits(table.learning_rate) for table in tables]
        first = meet(all_gather, Verb.RATES, rates, {})[0]
        for table, bits in zip(tables, first.numbers, strict=True):
            table.learning_rate = float_of(bits)

    # Training

    def lookup(self, keys: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Return the rows of hot keys, (n, dim) by table, in their order; the caller's to keep.

        Raises
        ------
        InvalidArgumentError : a key is not hot, or its row was not pulled.
        """
        self._settle()
        rows = {}
        for name, wanted in keys.items():
            table = self._table(name)
            rows[name] = table.rows.take(self._slots(table, wanted))
        return rows

    def update(
        self,
        gradients: Mapping[str, tuple[ArrayLike, Any]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
        all_gather: AllGather | None = None,
        receipt: Receipt | None = None,
    ) -> AcknowledgedUpdate:
        """Train hot rows by one update of all named tables, or none.

        Parameters
        ----------
        gradients : by table, keys (n,) in any order, repeated or not, and gradients (n, dim)
        learning_rate : None: the tables', as they were when they were pulled
        all_gather : of several ranks, which all call this; what they give is added in their order
        receipt : a new one, which tells whether this was done, if it is interrupted

        Returns
        -------
        Each table's t. Its command number is 0, as no store knows of it yet.

        Raises
        ------
        InvalidArgumentError : shape, dtype, a key that is not hot; a sum that is not finite; ranks
            that give other options, or whose replicas have parted. Nothing has changed.
        """
        self._settle()
        self._check_pushed()
        options = Options.checked(learning_rate, gradient_scale, on_nonfinite)
        own = {name: self._summed(name, *as_pair(p, name)) for name, p in gradients.items()}
        tables = [] if all_gather is None else self._numbers(options.learning_rate)
        told = meet(all_gather, Verb.UPDATE, [*options.numbers, *tables], own)
        check_alike(told, options.numbers, tables)
        sums = scaled([t.share for t in told], options.gradient_scale)
        if (wrong := first_nonfinite(sums)) is not None:
            return self._refuse(*wrong, options)
        self._receipt = receipt or Receipt()
        self._receipt._changes = [self._change(name, s, options) for name, s in sums.items()]
        self._settle()
        return AcknowledgedUpdate(0, self.t)

    def _numbers(self, learning_rate: float | None) -> list[int]:
        """Return each table's t and the rate of an update, as ranks compare them."""
        numbers = []
        for name in sorted(self._tables):
            table = self._tables[name]
            rate = table.learning_rate if learning_rate is None else learning_rate
            numbers += [table.t, float_bits(rate)]
        return numbers

    def _summed(self, name: str, keys: ArrayLike, gradients: Any) -> tuple[Keys, Rows]:
        """Return one table's gradients, summed by key (contract.md, rule 2)."""
        table = self._table(name)
        once, inverse = unique(as_keys(keys, name))
        self._slots(table, once)
        shape = len(inverse), table.config.dim
        rows = as_rows(self.to_host(gradients), shape, name, "gradients")
        return once, rows if len(once) == len(inverse) else sum_by_key(inverse, len(once), rows)

    def _change(self, name: str, sums: Sums, options: Options) -> _Change:
        table = self._table(name)
        slots, t = self._slots(table, sums.keys), table.t + 1
        if t > _T_MAX:
            raise InvalidArgumentError(f"table {name!r}: t is {_T_MAX} and cannot grow")
        given = options.learning_rate
        rate = table.learning_rate if given is None else given
        scalars = update_scalars(table.config.optimizer, t, rate, table.config.dim)
        weights, state = table.rows.updated(slots, sums.gradients, scalars)
        dirty_count = table.dirty_count + int(np.count_nonzero(~table.is_dirty[slots]))
        return _Change(table, slots, weights, state, t, dirty_count)

    def _settle(self) -> None:
        """Put an update in place; one that was interrupted in this as well."""
        for change in self._receipt._changes or ():
            table = change.table
            table.rows.write(change.slots, change.weights, change.state)
            table.is_dirty[change.slots] = True
            table.dirty_count, table.t = change.dirty_count, change.t
        if self._receipt.is_taken:
            self._receipt._changes = []

    def _refuse(self, name: str, key: int, options: Options) -> AcknowledgedUpdate:
        if options.skips_nonfinite:
            return AcknowledgedUpdate(0, self.t, skipped=True)
        raise InvalidArgumentError(
            f"table {name!r}: expected finite gradients, found a sum or scaled sum that is not, "
            f'for key {key}; give on_nonfinite="skip" to skip such an update'
        )

    def _table(self, name: Any) -> HotTable:
        if name not in self._tables:
            raise InvalidArgumentError(
                f"expected tables with hot rows here, of {sorted(self._tables)}, found {name!r}"
            )
        return self._tables[name]

    def _slots(self, table: HotTable, keys: ArrayLike) -> Slots:
        slots = table.slots(keys)
        is_stale = table.is_stale[slots]
        if is_stale.any():
            raise InvalidArgumentError(
                f"table {table.config.name!r}: expected rows to be pulled before they are used, "
                f"found key {table.index.keys[slots[is_stale][0]]}"
            )
        return slots

    # What the trainer computes with

    def to_trainer(self, rows: Rows) -> Any:
        """Return rows of the host as `lookup` returns them."""
        return rows

    def to_host(self, rows: Any) -> Any:
        """Return rows of the trainer as an array of the host; what is none is returned as it is."""
        return rows

    # Pushing

    def push(self, member: str) -> AcknowledgedUpdate | None:
        """Send the rows trained since the last push, in one command; None if there are none.

        Parameters
        ----------
        member : of the session that holds the tables, no announced step of which is unfinished

        Raises
        ------
        EmbstoreError : what the store says. The rows are still here, and may be pushed again.
        """
        self._settle()
        if self._pushing is not None and self._has_arrived(self._pushing):
            self.note_pushed()
        rows = {name: self._unsent(t) for name, t in self._tables.items() if t.t != t.stored_t}
        if not rows:
            return None
        self._pushing = _Push(
            {name: self._tables[name].t for name in rows},
            sum(len(keys) for keys, *_ in rows.values()),
            self.unsent_bytes,
        )
        done: AcknowledgedUpdate = self._called(self._store.sessions.put_rows, member, rows)
        self.note_pushed()
        return done

    def note_pushed(self) -> None:
        """Note that the store has what was trained here, whichever rank has pushed it."""
        for table in self._tables.values():
            table.is_sent()
        pushed, self._pushing = self._pushing, None
        if pushed is not None:
            self.pushed_rows += pushed.rows
            self.pushed_bytes += pushed.bytes

    def _unsent(self, table: HotTable) -> tuple[Keys, Rows, Rows, int]:
        slots = np.flatnonzero(table.is_dirty)
        return table.index.keys[slots], *table.rows.read(slots), table.t - table.stored_t

    def _has_arrived(self, pushed: _Push) -> bool:
        """Ask the store whether a push was done whose end this replica has not seen."""
        name, t = next(iter(pushed.t.items()))
        return bool(self._called(lambda: self._tables[name].handle.t) == t)

    def _check_pushed(self) -> None:
        if self._pushing is not None:
            raise InvalidArgumentError(
                "expected the last push to have succeeded before more is trained; push again"
            )


def _parts(slots: Slots, rows_max: int) -> Iterator[Slots]:
    """Cut slots into parts that one call takes."""
    step = max(rows_max, 1)
    for first in range(0, len(slots), step):
        yield slots[first : first + step]

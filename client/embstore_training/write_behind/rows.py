"""The rows in flight: the rows of the last steps, in the state that they have at the loop's present
step.

The reader's thread has assigned slots to the rows (`slots`). The rows of a step pass four stages,
each in the order of the steps, except for the second. After each stage's condition stands the
thread that meets it:

    expected   there is room for the step's new rows: the loop, `depth` steps ahead
    put        the new rows have arrived, and are in their slots: a thread that requests rows
    admitted   the rows have got the updates of other ranks that they lacked: the loop, when it
               looks up or finishes the step
    updated    the step's update has changed its rows: the loop

**Rows can be put while the loop works,** because nothing else uses the slots of a step's new rows
at that time. The key that had such a slot before was last used more than 2 * depth steps before the
step. When the loop makes room for a step ("expected"), it has finished all steps up to the step
that is depth + 1 steps earlier.

**Checksums** are computed over the rows to which an update is applied. The loop only copies these
rows, which takes a fraction of the time. The thread that sends the step computes the checksum of
the copies.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import checksum, unique
from embstore.arrays import EMPTY_KEY, Inverse, Keys, Rows
from embstore.commands import UpdateOptions
from embstore.config import TableConfig
from embstore.layout import VALUE_BYTES
from embstore.results import StepRecords, TableDescription
from embstore_training.replicas.ranks import AllGather
from embstore_training.replicas.rows import HostRows, Slots, TrainersRows
from embstore_training.replicas.update import Sums, Trained, agreed, checked, scalars_of
from embstore_training.write_behind.slots import Placed

POSITION_BYTES = 4


class StepSums(NamedTuple):
    """One table's gradients of a step, by key, in the form in which they are sent."""

    keys: Keys  # (n,), distinct
    gradients: Rows  # (n, dim)
    slots: Slots  # (n,)


class ArrivedRows(NamedTuple):
    """New rows of a step that one call has read and written to their slots."""

    last_step: int  # the last step whose update the rows include
    slots: dict[str, Slots]  # by table


class _Update(NamedTuple):
    """One update of one table by all ranks, kept for rows that arrive later."""

    sums: Sums
    scalars: Rows  # of the optimizer


Copies = Mapping[str, Callable[[], tuple[Rows, Rows]]]
"""By table, a function that returns copies of weights and state."""


class Checksum:
    """The checksum of a step's rows (`embstore.commands.RowsChecksum`). Any thread can have it
    computed.

    The rows are kept as long as the step may be sent again: when a cluster grows, the checksum of
    all rows is requested first, and then a checksum for each shard.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies

    def __index__(self) -> int:
        """Return the checksum of all rows (`embstore.arithmetic.checksum`)."""
        return checksum(copies() for copies in self._copies.values())

    def of(self, positions: Mapping[str, Inverse]) -> int:
        """Return the checksum of the rows at some positions of every table."""
        rows = ((positions[name], *copies()) for name, copies in self._copies.items())
        return checksum((weights[places], state[places]) for places, weights, state in rows)


MakeRows = Callable[[TableConfig, int], TrainersRows]
"""A function that makes slots for a number of rows of a table."""


class Table:
    """One table's rows in flight."""

    def __init__(self, described: TableDescription, make_rows: MakeRows) -> None:
        self.config = described.config
        self.t = described.t
        self.rows = make_rows(described.config, 0)
        self.keys = np.empty(0, np.int64)  # Key of each slot, or EMPTY_KEY. For several ranks only.
        self._guard = threading.Lock()  # Rows that are put while arrays grow would be lost.

    @property
    def trained(self) -> Trained:
        return Trained(self.config, self.t, self.config.optimizer.learning_rate)

    def make_room(self, slot_count: int) -> None:
        if slot_count > len(self.keys):
            count = max(slot_count, len(self.keys) * 5 // 4)
            with self._guard:
                self.rows.grow(count)
            more = np.full(count - len(self.keys), EMPTY_KEY)
            self.keys = np.concatenate([self.keys, more])

    def put(self, slots: Slots, weights: Rows, state: Rows) -> None:
        with self._guard:
            self.rows.write(slots, weights, state)

    def find(self, keys: Keys) -> tuple[Slots, NDArray[np.bool_]]:
        """Return the slots of those of `keys` that have slots, and a mask of these keys, (n,)."""
        occupied = np.flatnonzero(self.keys != EMPTY_KEY)
        places = places_in(self.keys[occupied], keys)
        is_here = places >= 0
        return occupied[places[is_here]], is_here


class RowsInFlight:
    """The rows in flight of a session's tables. Only the loop's thread calls a method, unless the
    method allows any thread."""

    def __init__(
        self,
        tables: Mapping[str, TableDescription],
        window: int,
        all_gather: AllGather | None,
        make_rows: MakeRows = HostRows,
    ) -> None:
        """Begin without rows. `tables` describe the tables after the last finished step."""
        self._tables = {name: Table(described, make_rows) for name, described in tables.items()}
        self._all_gather = all_gather
        self._updates: deque[tuple[int, dict[str, _Update]]] = deque(maxlen=window)
        """For several ranks: the updates of the last steps, by step."""

    @property
    def t(self) -> dict[str, int]:
        """Each table's t at the trainer."""
        return {name: table.t for name, table in self._tables.items()}

    def dim(self, name: str) -> int:
        """Return the dim of a table."""
        return self._tables[name].config.dim

    def gradient_bytes(self, name: str) -> int:
        """Return the size of one gradient of a table in bytes."""
        return VALUE_BYTES * self.dim(name)

    @property
    def row_bytes(self) -> dict[str, int]:
        """For each table, the bytes that a row, together with its position, takes in a message."""
        return {
            name: POSITION_BYTES + VALUE_BYTES * (table.config.dim + table.config.state_dim)
            for name, table in self._tables.items()
        }

    def expect(self, placed: Mapping[str, Placed]) -> None:
        """Make room for the new rows of a step, which can be put from now on."""
        for name, places in placed.items():
            table = self._tables[name]
            table.make_room(places.slot_count)
            table.keys[places.freed] = EMPTY_KEY

    def put(
        self,
        placed: Mapping[str, Placed],
        wanted: Mapping[str, Inverse],
        records: StepRecords,
    ) -> list[ArrivedRows]:
        """Write arrived rows of a step to their slots. Return these slots, grouped by the last step
        whose update the rows in them include. Any thread can call this.

        wanted : the positions that were requested, (n,) by table
        """
        put: dict[str, Slots] = {}
        for part in records.tables:
            put[part.table] = slots = placed[part.table].slots[wanted[part.table]]
            assert part.state is not None, "they are asked for with their state"
            self._tables[part.table].put(slots, part.rows, part.state)
        return [
            ArrivedRows(last_step, {name: put[name][places] for name, places in own.items()})
            for last_step, own in records.by_last_step()
        ]

    def admit(
        self, placed: Mapping[str, Placed], keys: Mapping[str, Keys], came: Iterable[ArrivedRows]
    ) -> None:
        """Apply to a step's new rows the updates of earlier steps that they lack. The caller has
        put all new rows of the step before."""
        if self._all_gather is None:
            return  # no new row lacks an update, and no row is looked up by key
        for name, places in placed.items():
            self._tables[name].keys[places.slots] = keys[name]
        for rows in came:
            for name, slots in rows.slots.items():
                for number, updates in self._updates:
                    if number > rows.last_step and name in updates:
                        self._catch_up(self._tables[name], slots, updates[name])

    def _catch_up(self, table: Table, slots: Slots, update: _Update) -> None:
        """Apply an update to rows that lack it: the rows in `slots` that the update changes."""
        places = places_in(table.keys[slots], update.sums.keys)
        is_named = places >= 0
        gradients = update.sums.gradients[is_named]
        table.rows.update(slots[places[is_named]], gradients, update.scalars)

    def lookup(self, placed: Mapping[str, Placed]) -> dict[str, Any]:
        """Return the weights of a step's keys, (u, dim) by table, as copies for the caller."""
        return {name: self._tables[name].rows.take(places.slots) for name, places in placed.items()}

    def checksum(self, placed: Mapping[str, Placed]) -> Checksum:
        """Return an object that computes the checksum of a step's rows in their present state."""
        return Checksum(
            {name: self._copies(self._tables[name].rows, of.slots) for name, of in placed.items()}
        )

    def _copies(self, rows: Any, slots: Slots) -> Callable[[], tuple[Rows, Rows]]:
        copies = rows.read(slots)
        return lambda: copies

    def update(self, number: int, given: Mapping[str, StepSums], options: UpdateOptions) -> bool:
        """Apply a step's update by all ranks; return False if the update is skipped.

        Raises
        ------
        InvalidArgumentError : see `replicas.update.agreed`; or t cannot grow. Nothing has changed.
        """
        options = checked(options)
        trained = {name: table.trained for name, table in self._tables.items()}
        agreed_sums = self._agreed(given, options, trained)
        if agreed_sums is None:
            return False
        updates = {
            name: _Update(sums, scalars_of(trained[name], options))
            for name, sums in agreed_sums.items()
        }
        for name, ((keys, gradients), scalars) in updates.items():
            table = self._tables[name]
            if self._all_gather is None:
                slots = given[name].slots
            else:
                slots, is_here = table.find(keys)
                gradients = gradients[is_here]
            table.rows.update(slots, gradients, scalars)
            table.t += 1
        if self._all_gather is not None:
            self._updates.append((number, updates))
        return True

    def _agreed(
        self,
        given: Mapping[str, StepSums],
        options: UpdateOptions,
        trained: Mapping[str, Trained],
    ) -> dict[str, Sums] | None:
        own = {name: (sums.keys, sums.gradients) for name, sums in given.items()}
        return agreed(own, options, trained, self._all_gather)


def places_in(known: Keys, keys: Keys) -> Slots:
    """Return the index of each of `keys` in `known`, whose keys are distinct; -1: the key is not in
    `known`."""
    once, inverse = unique(np.concatenate([known, keys]))
    places = np.full(len(once), -1)
    places[inverse[: len(known)]] = np.arange(len(known))
    found: Slots = places[inverse[len(known) :]]
    return found

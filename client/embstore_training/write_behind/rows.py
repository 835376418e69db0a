"""The rows in flight: those of the last steps, as of the step that the loop is at.

They are held in slots that the reader's thread has given out (`slots`). A step is **admitted**
once, in order, before it is looked up or finished: its new rows are put in place, with what they
have not seen of other ranks' updates applied. Then rows are read, and the step's update changes
them.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import checksum, unique
from embstore.arrays import EMPTY_KEY, Keys, Rows
from embstore.commands import UpdateOptions
from embstore.results import StepRecords, TableDescription
from embstore_training.replicas.ranks import AllGather
from embstore_training.replicas.rows import HostRows, Slots
from embstore_training.replicas.update import Sums, Trained, agreed, checked, scalars_of
from embstore_training.write_behind.slots import Placed


class StepSums(NamedTuple):
    """One table's gradients of a step, by key, as they are sent."""

    keys: Keys  # (n,), distinct
    gradients: Rows  # (n, dim)
    slots: Slots  # (n,)


class _Update(NamedTuple):
    """One update of one table by all ranks, for rows that come later."""

    sums: Sums
    scalars: Rows  # of its optimizer


class _Table:
    """One table's rows in flight."""

    def __init__(self, described: TableDescription) -> None:
        self.config = described.config
        self.t = described.t
        self.rows = HostRows(described.config, 0)
        self.keys = np.empty(0, np.int64)  # of each slot; EMPTY_KEY: none

    @property
    def trained(self) -> Trained:
        return Trained(self.config, self.t, self.config.optimizer.learning_rate)

    def make_room(self, slot_count: int) -> None:
        if slot_count > len(self.keys):
            count = max(slot_count, len(self.keys) * 5 // 4)
            self.rows.grow(count)
            more = np.full(count - len(self.keys), EMPTY_KEY)
            self.keys = np.concatenate([self.keys, more])

    def find(self, keys: Keys) -> tuple[Slots, NDArray[np.bool_]]:
        """Return the slots of those of some keys that are here, and which these are."""
        occupied = np.flatnonzero(self.keys != EMPTY_KEY)
        places = places_in(self.keys[occupied], keys)
        is_here = places >= 0
        return occupied[places[is_here]], is_here


class RowsInFlight:
    """The rows in flight of a session's tables. The loop's thread only."""

    def __init__(
        self,
        tables: Mapping[str, TableDescription],
        window: int,
        all_gather: AllGather | None,
    ) -> None:
        """Have no rows yet. `tables` are as of the last finished step."""
        self._tables = {name: _Table(described) for name, described in tables.items()}
        self._all_gather = all_gather
        self._updates: deque[tuple[int, dict[str, _Update]]] = deque(maxlen=window)
        """Of several ranks: the updates of the last steps, by step."""

    @property
    def t(self) -> dict[str, int]:
        """Each table's t here."""
        return {name: table.t for name, table in self._tables.items()}

    def dim(self, name: str) -> int:
        """Return the dim of a table."""
        return self._tables[name].config.dim

    def admit(
        self,
        placed: Mapping[str, Placed],
        keys: Mapping[str, Keys],
        records: StepRecords | None,
    ) -> None:
        """Put the rows of a step in place; None: all are here."""
        for name, places in placed.items():
            table = self._tables[name]
            table.make_room(places.slot_count)
            table.keys[places.freed] = EMPTY_KEY
            table.keys[places.slots] = keys[name]
        for part in records.tables if records is not None else ():
            table, places = self._tables[part.table], placed[part.table]
            slots = places.slots[places.new]
            assert part.state is not None, "they are asked for with their state"
            table.rows.write(slots, part.rows, part.state)
            for number, updates in self._updates:
                assert records is not None
                if number > records.last_step and part.table in updates:
                    self._catch_up(table, slots, updates[part.table])

    def _catch_up(self, table: _Table, slots: Slots, update: _Update) -> None:
        """Apply an update that rows have not seen, to those of them that it names."""
        places = places_in(table.keys[slots], update.sums.keys)
        is_named = places >= 0
        gradients = update.sums.gradients[is_named]
        table.rows.update(slots[places[is_named]], gradients, update.scalars)

    def lookup(self, placed: Mapping[str, Placed]) -> dict[str, Rows]:
        """Return the weights of a step's keys, (u, dim) by table, the caller's to keep."""
        return {name: self._tables[name].rows.take(places.slots) for name, places in placed.items()}

    def checksum(self, placed: Mapping[str, Placed]) -> int:
        """Return the checksum of a step's rows (`embstore.arithmetic.checksum`)."""
        return checksum(
            self._tables[name].rows.read(places.slots) for name, places in placed.items()
        )

    def update(self, number: int, given: Mapping[str, StepSums], options: UpdateOptions) -> bool:
        """Apply a step's update, of all ranks; return False if it is skipped.

        Raises
        ------
        InvalidArgumentError : see `replicas.update.agreed`; t cannot grow. Nothing has changed.
        """
        options = checked(options)
        own = {name: (sums.keys, sums.gradients) for name, sums in given.items()}
        trained = {name: table.trained for name, table in self._tables.items()}
        agreed_sums = agreed(own, options, trained, self._all_gather)
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


def places_in(known: Keys, keys: Keys) -> Slots:
    """Return where each of some keys is among distinct others, -1 where it is not."""
    once, inverse = unique(np.concatenate([known, keys]))
    places = np.full(len(once), -1)
    places[inverse[: len(known)]] = np.arange(len(known))
    found: Slots = places[inverse[len(known) :]]
    return found

"""One table's hot rows in slots: the slot of each key, and the state of each row.

A key's **slot** is its index among the table's hot keys, which ascend. The slot is found by an
int32 map from key to slot or, if keys exceed the bound of that map, by binary search in the keys.
Map and search use integers. FAE (Adnan et al., VLDB 2022) stores slots as float32, and does not
transfer the optimizer state; here a row's weights and state are read and written together.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import Keys, Rows, as_keys, as_rows, outside
from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.results import TableFacts
from embstore_training.replicas.rows import Slots, TrainersRows
from embstore_training.replicas.update import Trained

DENSE_KEYS_MAX = 1 << 24
"""Upper bound of a table's keys, if their slots are in a map. With 4 bytes per key, a map has at
most 64 MiB."""


class SlotIndex:
    """The slot of each key: its index among the table's hot keys."""

    def __init__(self, keys: Keys) -> None:
        """Index `keys`, ascending."""
        self.keys = keys
        self._places: NDArray[np.int32] | None = None
        if len(keys) and 0 <= keys[0] <= keys[-1] < DENSE_KEYS_MAX:
            self._places = np.zeros(int(keys[-1]) + 1, np.int32)
            self._places[keys] = np.arange(len(keys), dtype=np.int32)

    def find(self, keys: Keys) -> tuple[Slots, NDArray[np.bool_]]:
        """Return a slot per key, (n,), and a mask of the hot keys: only the slots of hot keys are
        valid."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        if self._places is None:
            slots = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        else:
            slots = self._places.take(keys, mode="clip").astype(np.int64)
        return slots, self.keys.take(slots, mode="clip") == keys


class HotTable:
    """One table and its hot rows: slots, t, and the marks of stale and dirty rows."""

    def __init__(self, handle: Any, config: TableConfig, keys: Keys, rows: TrainersRows) -> None:
        if (error := outside(keys, config.rows, config.name)) is not None:
            raise InvalidArgumentError(f"hot set: {error}")
        self.handle = handle
        self.config = config
        self.index = SlotIndex(keys)
        self.rows = rows
        self.t = 0
        self.stored_t = 0  # The last known t in the store; `t` includes updates not pushed yet.
        self.learning_rate = 0.0
        self.is_stale = np.ones(len(keys), np.bool_)
        self.is_dirty = np.zeros(len(keys), np.bool_)
        self.dirty_count = 0

    @property
    def trained(self) -> Trained:
        """The properties of the table that ranks compare before an update."""
        return Trained(self.config, self.t, self.learning_rate)

    @property
    def row_bytes(self) -> int:
        """Size of a row in a message, in bytes: key, weights and state."""
        return 8 + VALUE_BYTES * (self.config.dim + self.config.state_dim)

    def push_bytes(self, count: int) -> int:
        """Return the most bytes that a push of `count` rows would send."""
        return min(count, len(self.index.keys)) * self.row_bytes

    def take(self, facts: TableFacts) -> None:
        """Adopt t and learning rate from the store."""
        self.t = self.stored_t = facts.t
        self.learning_rate = facts.learning_rate

    def slots(self, keys: ArrayLike) -> Slots:
        """Return the slots of keys, (n,); refuse keys that are not hot."""
        checked = as_keys(keys, self.config.name)
        slots, is_hot = self.index.find(checked)
        if not is_hot.all():
            raise InvalidArgumentError(
                f"table {self.config.name!r}: expected keys of the hot set, found "
                f"{checked[~is_hot][0]}"
            )
        return slots

    def pulled_slots(self, keys: ArrayLike) -> Slots:
        """Return the slots of keys, (n,); refuse keys whose rows are stale."""
        slots = self.slots(keys)
        is_stale = self.is_stale[slots]
        if is_stale.any():
            raise InvalidArgumentError(
                f"table {self.config.name!r}: expected rows to be pulled before they are used, "
                f"found key {self.index.keys[slots[is_stale][0]]}"
            )
        return slots

    def pulled(self, slots: Slots, rows_max: int, called: Callable[..., Any]) -> Iterator[int]:
        """Read rows from the store, at most `rows_max` per call; yield the number of rows of each
        call."""
        for first in range(0, len(slots), rows_max):
            part = slots[first : first + rows_max]
            weights, state = called(self.handle.read_rows, self.index.keys[part])
            self.rows.write(part, weights, state)
            self.is_stale[part] = False
            yield len(part)

    def mark_stale(self, keys: Keys) -> None:
        """Mark rows of keys as stale. Keys that are not hot are ignored."""
        slots, is_hot = self.index.find(keys)
        self.is_stale[slots[is_hot]] = True

    def summed(self, keys: ArrayLike, gradients: Any) -> tuple[Keys, Rows]:
        """Return gradients, (n, dim) on the host, summed by key (contract.md, rule 2)."""
        once, inverse = unique(as_keys(keys, self.config.name))
        self.pulled_slots(once)
        rows = as_rows(gradients, (len(inverse), self.config.dim), self.config.name, "gradients")
        return once, rows if len(once) == len(inverse) else sum_by_key(inverse, len(once), rows)

    def note_pushed(self) -> None:
        """Note that the store has all updates of this table."""
        self.stored_t, self.dirty_count = self.t, 0
        self.is_dirty[:] = False

    def unsent(self) -> tuple[Keys, Rows, Rows, int]:
        """Return keys, weights and state of dirty rows, and the number of updates not pushed."""
        slots = np.flatnonzero(self.is_dirty)
        return self.index.keys[slots], *self.rows.read(slots), self.t - self.stored_t

"""One table's hot rows in slots: where a key's row is, and what is known of it.

A key's **slot** is its place among the table's hot keys, which ascend. It is found by an int32 map
from key to slot, or where keys reach beyond its bound by binary search in the keys: integers either
way. FAE (Adnan et al., VLDB 2022) keeps slots as float32 and leaves the state behind; here a row's
weights and state are read and written together.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import apply_update
from embstore.arrays import Keys, Rows, as_keys
from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES

DENSE_KEYS_MAX = 1 << 24
"""Largest key of a table whose slots are in a map, of 4 bytes a key: at most 64 MiB a table."""

Slots = NDArray[np.int64]


class SlotIndex:
    """Which slot a key has: its place among the table's hot keys."""

    def __init__(self, keys: Keys) -> None:
        """Index `keys`, ascending and >= 0."""
        self.keys = keys
        self._places: NDArray[np.int32] | None = None
        if len(keys) and keys[-1] < DENSE_KEYS_MAX:
            self._places = np.zeros(int(keys[-1]) + 1, np.int32)
            self._places[keys] = np.arange(len(keys), dtype=np.int32)

    def find(self, keys: Keys) -> tuple[Slots, NDArray[np.bool_]]:
        """Return a slot for each key, (n,), and whether it is the key's, because the key is hot."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        if self._places is None:
            slots = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        else:
            slots = self._places.take(keys, mode="clip").astype(np.int64)
        return slots, self.keys.take(slots, mode="clip") == keys


class HostRows:
    """Weights and state of one table's hot rows, by slot, in NumPy arrays."""

    def __init__(self, config: TableConfig, count: int) -> None:
        self._kind = config.optimizer.kind
        self._weights = self._zeros(count, config.dim)
        self._state = self._zeros(count, config.state_dim)

    def _zeros(self, *shape: int) -> Any:
        return np.zeros(shape, np.float32)

    def take(self, slots: Slots) -> Any:
        """Return the weights of slots, (n, dim), as the trainer computes with them, a copy."""
        # No slot is clipped; but to look for one that is out of range takes longer than the copy.
        return self._weights.take(slots, axis=0, mode="clip")

    def read(self, slots: Slots) -> tuple[Rows, Rows]:
        """Return weights and state of slots, copies on the host."""
        return self.take(slots), self._state.take(slots, axis=0, mode="clip")

    def updated(self, slots: Slots, gradients: Rows, scalars: Rows) -> tuple[Any, Any]:
        """Return what weights and state of distinct slots are after an update; nothing changes.

        Raises
        ------
        DeviceError : this thread flushes denormals.
        """
        weights, state = self.read(slots)
        apply_update(self._kind, weights, state, gradients, scalars)
        return weights, state

    def write(self, slots: Slots, weights: Any, state: Any) -> None:
        """Set weights and state of distinct slots: those of `updated`, or of the host."""
        self._weights[slots] = weights
        self._state[slots] = state


class HotTable:
    """What is known of one table and its hot rows."""

    def __init__(self, handle: Any, config: TableConfig, keys: Keys, rows: HostRows) -> None:
        self.handle = handle
        self.config = config
        self.index = SlotIndex(keys)
        self.rows = rows
        self.t = 0
        self.stored_t = 0  # In the store, as far as is known: `t` is what it is to become.
        self.learning_rate = 0.0
        self.is_stale = np.ones(len(keys), np.bool_)
        self.is_dirty = np.zeros(len(keys), np.bool_)
        self.dirty_count = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row where it travels: key, weights and state."""
        return 8 + VALUE_BYTES * (self.config.dim + self.config.state_dim)

    def slots(self, keys: ArrayLike) -> Slots:
        """Return the slots of keys, (n,), all of which must be hot."""
        checked = as_keys(keys, self.config.name)
        slots, is_hot = self.index.find(checked)
        if not is_hot.all():
            raise InvalidArgumentError(
                f"table {self.config.name!r}: expected keys of the hot set, found "
                f"{checked[~is_hot][0]}"
            )
        return slots

    def pulled_slots(self, keys: ArrayLike) -> Slots:
        """Return the slots of keys, (n,), whose rows must not be stale."""
        slots = self.slots(keys)
        is_stale = self.is_stale[slots]
        if is_stale.any():
            raise InvalidArgumentError(
                f"table {self.config.name!r}: expected rows to be pulled before they are used, "
                f"found key {self.index.keys[slots[is_stale][0]]}"
            )
        return slots

    def unsent(self) -> tuple[Keys, Rows, Rows, int]:
        """Return keys, weights and state of the dirty rows, and how many updates made them."""
        slots = np.flatnonzero(self.is_dirty)
        return self.index.keys[slots], *self.rows.read(slots), self.t - self.stored_t

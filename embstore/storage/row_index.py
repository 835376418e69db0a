"""The log index: row key -> where the row's newest record is in the log.

Open addressing with linear probing at a load of at most 0.7, because its lookups are by the
thousand and touch one cache line each; removal shifts the following entries back, so that no
tombstone ever slows a probe. It has one entry per distinct row since the last fold, which bounds it
(design.md, section 4).

A **position** is ``place << 40 | byte offset``: a place is a small number that a log segment holds
while records of it can be found (log.py). `live` counts, by place, the records that are some key's
newest.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, Keys
from embstore.device.memory import reserve
from embstore.kernels.row_index import PLACE_BITS, find, put, repoint

OFFSET_MASK = (1 << PLACE_BITS) - 1
_INITIAL = 1 << 12
_SHRINK = 16
"""A fold can empty the index; below one entry in so many it gives its memory back."""


def _entries(capacity: int) -> tuple[Keys, NDArray[np.int64]]:
    """Return empty keys and their positions, in memory of its own: huge pages spare page walks."""
    keys = reserve(8 * capacity).view(np.int64)
    keys.fill(EMPTY_KEY)
    return keys, reserve(8 * capacity).view(np.int64)


class RowIndex:
    """Row keys and the positions of their newest records. Engine thread only."""

    def __init__(self) -> None:
        self.size = 0
        self._keys, self._positions = _entries(_INITIAL)

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that the index takes."""
        return self._keys.nbytes + self._positions.nbytes

    def find(self, keys: Keys, positions: NDArray[np.int64]) -> None:
        """Write each key's position, or -1, into `positions`."""
        find(self._keys, self._positions, keys, positions)

    def put(
        self,
        keys: Keys,
        positions: NDArray[np.int64],
        live: NDArray[np.int64],
        frozen: NDArray[np.uint8],
    ) -> None:
        """Point each key at its newer position and account for it in `live`.

        A place that is `frozen` keeps its count: a kept checkpoint still needs the record that is
        superseded. Of a repeated key the last counts.
        """
        self.make_room(len(keys))
        self.size += put(self._keys, self._positions, keys, positions, live, frozen)

    def repoint(
        self,
        keys: Keys,
        olds: NDArray[np.int64],
        news: NDArray[np.int64],
        live: NDArray[np.int64],
    ) -> None:
        """Point keys that still have their old position to the new one, or to none (-1)."""
        self.size -= repoint(self._keys, self._positions, keys, olds, news, live)
        if _SHRINK * self.size < len(self._keys) and len(self._keys) > _INITIAL:
            self._rebuild(max(_INITIAL, 1 << (2 * self.size).bit_length()))

    def keys_between(self, low: int, high: int) -> Keys:
        """Return the row keys in [low, high), in no order."""
        keys: Keys = self._keys[(self._keys >= low) & (self._keys < high)]
        return keys

    def positions_of(self, keys: Keys) -> NDArray[np.int64]:
        """Return a new array of each key's position, or -1."""
        positions = np.empty(len(keys), np.int64)
        self.find(keys, positions)
        return positions

    def positions(self) -> NDArray[np.int64]:
        """Return every position, in no order."""
        found: NDArray[np.int64] = self._positions[self._keys != EMPTY_KEY]
        return found

    def make_room(self, count: int) -> None:
        """Grow once for `count` keys more, rather than again and again."""
        size = self.size + count
        if 10 * size <= 7 * len(self._keys):
            return
        self._rebuild(1 << (2 * size - 1).bit_length())

    def _rebuild(self, capacity: int) -> None:
        # Into new arrays first: a failure half way must not leave an index without its rows.
        keys, positions = _entries(capacity)
        used = self._keys != EMPTY_KEY
        old_keys, old_positions = self._keys[used], self._positions[used]
        places = int(old_positions.max(initial=0) >> PLACE_BITS) + 1
        nothing, frozen = np.zeros(places, np.int64), np.ones(places, np.uint8)
        put(keys, positions, old_keys, old_positions, nothing, frozen)
        self._keys, self._positions = keys, positions

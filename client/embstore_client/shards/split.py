"""Which of some keys each shard has.

Keys are sorted by shard and keep their order within each, so the last of repeated keys is the last
at its shard, and ascending positions stay ascending.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import partitions
from embstore.arrays import Keys
from embstore.sharding import ShardMap

Positions = NDArray[np.intp]


class Split:
    """The places of some keys of one table, by shard."""

    def __init__(self, shard_of: NDArray[np.uint16], shard_count: int) -> None:
        """Split n keys, whose shards are `shard_of` (n,)."""
        self._shard_of = shard_of
        self._order = np.argsort(shard_of, kind="stable")  # by counting: of 16-bit integers
        counts = np.bincount(shard_of, minlength=shard_count)
        self._bounds = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return len(self._order)

    def count(self, shard: int) -> int:
        """Return how many keys a shard has."""
        return int(self._bounds[shard + 1] - self._bounds[shard])

    def of(self, shard: int) -> Positions:
        """Return the positions of the keys that a shard has, ascending."""
        return self._order[self._bounds[shard] : self._bounds[shard + 1]]

    def within(self, positions: NDArray[Any], shard: int) -> tuple[Positions, NDArray[np.uint32]]:
        """Return which of some positions (ascending) a shard has, and where among its own."""
        mine = np.flatnonzero(self._shard_of[positions] == shard)
        places = np.searchsorted(self.of(shard), positions[mine])
        return mine, places.astype(np.uint32)


class Owners:
    """Which shard has each partition: a map, ready to be asked for many keys."""

    def __init__(self, shard_map: ShardMap) -> None:
        self._owners = np.array(shard_map.owners, np.uint16)
        self._count = len(shard_map.shards)

    def split(self, seed: int, keys: Keys) -> Split:
        """Split keys of a table with this seed."""
        return Split(self._owners[partitions(seed, keys)], self._count)

    def of(self, parts: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return the shard of each partition."""
        found: NDArray[np.uint16] = self._owners[parts]
        return found

"""The arena: `cache_bytes` shared between pools, slab by slab, on demand.

A **slab** is a run of slots of one pool. A pool asks for one when it has no free slot; while the
budget lasts it gets it, and only when it is spent are rows evicted. Everything of a slot counts:
its row, its metadata and its share of the index.

A pool that comes late must not starve: each pool has a **floor**, an equal part of half the budget
(and one slab at least). A pool below its floor may take a slab from the pool that is furthest above
its own; that pool evicts the rows of its last slab first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from embstore.errors import CapacityError

_SLABS = 64
_SLAB_BYTES_MIN = 8 << 10
_SLAB_BYTES_MAX = 16 << 20


class Holder(Protocol):
    """A pool, as the arena sees it."""

    slab_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Bytes of slabs and index that the pool holds now."""

    @property
    def grown_bytes(self) -> int:
        """Bytes it would hold with one slab more."""

    @property
    def least_bytes(self) -> int:
        """Bytes it would hold with one slab."""

    @property
    def slab_count(self) -> int:
        """Slabs it holds."""

    def release_slab(self) -> None:
        """Evict the rows of the last slab and give it back."""


class Arena:
    """The budget of one store's cache. Engine thread only."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.pools: list[Holder] = []
        self._fixed = False

    @property
    def slab_bytes(self) -> int:
        """The size that slabs aim at: small enough to share fairly, large enough to be few."""
        return min(max(self.budget_bytes // _SLABS, _SLAB_BYTES_MIN), _SLAB_BYTES_MAX)

    @property
    def memory_bytes(self) -> int:
        """Bytes that all pools hold."""
        return sum(pool.memory_bytes for pool in self.pools)

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Let no slab change hands: a command is writing, and has reserved for what it found."""
        self._fixed = True
        try:
            yield
        finally:
            self._fixed = False

    def join(self, pool: Holder) -> None:
        """Add a pool; its first slab is granted, if need be at the cost of another pool's.

        Raises
        ------
        CapacityError : the budget cannot give it one slab.
        """
        self.pools.append(pool)
        granted = False
        try:
            granted = self.grant(pool)
        finally:
            if not granted:
                self.pools.remove(pool)
        if not granted:
            # A larger budget means larger staging too, by a thirty-second; hence the margin.
            needed = pool.grown_bytes + self.memory_bytes
            raise CapacityError(
                f"cache_bytes is {self.budget_bytes}, of which {self.memory_bytes} are in use: "
                f"with a pool of this row size it must be {needed + needed // 8} or more; open "
                "the store with a larger cache_bytes"
            )

    def leave(self, pool: Holder) -> None:
        """Remove a pool that has no tables any more."""
        self.pools.remove(pool)

    def grant(self, pool: Holder) -> bool:
        """Say whether the pool may add a slab; below its floor, take slabs from others for it."""
        needed = pool.grown_bytes - pool.memory_bytes
        others = [p for p in self.pools if p is not pool]
        spare = sum(p.memory_bytes - p.least_bytes for p in others)
        if self._fixed or self.memory_bytes - spare + needed > self.budget_bytes:
            return False
        while self.memory_bytes + needed > self.budget_bytes:
            floor = self.budget_bytes // (2 * len(self.pools))
            if pool.slab_count and pool.grown_bytes > floor:
                return False
            donors = [p for p in others if p.slab_count > 1]
            donor = max(donors, key=lambda p: p.memory_bytes, default=None)
            if donor is None or (pool.slab_count and donor.memory_bytes - donor.slab_bytes < floor):
                return False
            donor.release_slab()
        return True

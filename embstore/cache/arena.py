"""The arena: `cache_bytes` shared between pools, slab by slab, on demand.

A **slab** is a run of slots of one pool. A pool asks for one when it has no free slot; while the
budget lasts it gets it, and only when it is spent are rows evicted. How large a slab is, and what
else a pool takes, follows from the budget (sizes.py).

A pool that comes late must not starve: each pool has a **floor**, an equal part of half the budget
(and one slab at least). A pool below its floor may take a slab from the largest pool; that pool
evicts the rows of its last slab first.

The budget may change (`resize`). Every pool then takes the sizes of the new one, as if it had been
made with it: slabs are only the steps in which slots come and go, so no slot moves for that. If the
pools have more than the new budget, the largest release slabs until they do not. Rejected: slabs
that stay as they were made. A cache could then not become smaller than the slabs of its first
budget, and one that grew a thousandfold would do so in steps too small to be worth one.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from embstore.cache.slots import PoolSlots
from embstore.errors import CapacityError


class Member(Protocol):
    """A pool, as the arena sees it."""

    slots: PoolSlots

    def release_slabs(self, count: int) -> None:
        """Evict the rows of the last slabs and free these, but never the first."""


class Arena:
    """The budget of one store's cache, or of its host tier. Engine thread only."""

    def __init__(self, budget_bytes: int, option: str = "cache_bytes") -> None:
        self.budget_bytes = budget_bytes
        self.option = option  # what the user calls it
        self.pools: list[Member] = []
        self.is_fixed = False

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.slots.memory_bytes for pool in self.pools)

    def fixed(self) -> AbstractContextManager[None]:
        """Move no slab between pools: a command is writing, and has reserved for what it found."""
        return _Fixed(self)

    def join(self, pool: Member) -> None:
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
            needed = pool.slots.grown_bytes + self.memory_bytes
            raise CapacityError(
                f"{self.option} is {self.budget_bytes}, of which {self.memory_bytes} are in use: "
                f"with a pool of this row size it must be {needed + needed // 8} or more; open "
                f"the store with a larger {self.option}"
            )

    def leave(self, pool: Member) -> None:
        """Remove a pool that has no tables any more."""
        self.pools.remove(pool)

    def grant(self, pool: Member) -> bool:
        """Say whether the pool may add a slab; below its floor, take slabs from others for it."""
        slots = pool.slots
        needed = slots.grown_bytes - slots.memory_bytes
        others = [p for p in self.pools if p is not pool]
        spare = sum(p.slots.memory_bytes - p.slots.sizes.least_bytes for p in others)
        if self.is_fixed or self.memory_bytes - spare + needed > self.budget_bytes:
            return False
        while self.memory_bytes + needed > self.budget_bytes:
            floor = self.budget_bytes // (2 * len(self.pools))
            if slots.slab_count and slots.grown_bytes > floor:
                return False
            donor = max(_donors(others), key=_memory_bytes, default=None)
            if donor is None:
                return False
            left = donor.slots.memory_bytes - donor.slots.sizes.slab_bytes
            if slots.slab_count and left < floor:
                return False
            donor.release_slabs(1)
        return True

    def resize(self, budget_bytes: int) -> None:
        """Change the budget; release what is beyond it.

        Raises
        ------
        CapacityError : the budget cannot give every pool one slab, the system refuses the address
            space, or the disk has no room for dirty rows that must leave. The budget and all sizes
            are what they were; of the rows, some may have left the cache.
        """
        self._check_least(budget_bytes)
        before = self.budget_bytes
        try:
            self._fit(budget_bytes)
            self._release_excess()
        except BaseException:
            self._fit(before)
            raise

    def _check_least(self, budget_bytes: int) -> None:
        # What pools need grows with the budget, so the least that is enough is where this ends.
        enough = budget_bytes
        while (needed := sum(p.slots.least_bytes_of(enough) for p in self.pools)) > enough:
            enough = needed
        if enough > budget_bytes:
            raise CapacityError(
                f"expected cache_bytes of {enough} or more, which the store's {len(self.pools)} "
                f"row layouts need, found {budget_bytes}"
            )

    def _fit(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        for pool in self.pools:
            pool.slots.fit_budget(budget_bytes)

    def _release_excess(self) -> None:
        """Have pools release slabs: the largest at the time an equal share of what is too much.

        A slab's share of the index goes with it, or few slabs would be left of small rows.
        """
        while (excess := self.memory_bytes - self.budget_bytes) > 0:
            donors = _donors(self.pools)
            if not donors:
                return
            donor = max(donors, key=_memory_bytes)
            slab_bytes = donor.slots.memory_bytes // donor.slots.slab_count
            donor.release_slabs(max(1, excess // (len(donors) * slab_bytes)))


class _Fixed(AbstractContextManager[None]):
    """What `Arena.fixed` enters. No generator: calls of few keys would notice it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def __enter__(self) -> None:
        self._arena.is_fixed = True

    def __exit__(self, *_: object) -> None:
        self._arena.is_fixed = False


def _donors(pools: list[Member]) -> list[Member]:
    """Return the pools that have a slab to release."""
    return [pool for pool in pools if pool.slots.slab_count > 1]


def _memory_bytes(pool: Member) -> int:
    return pool.slots.memory_bytes

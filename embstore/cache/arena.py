"""The arena: `cache_bytes` shared between pools, slab by slab, on demand.

A **slab** is a run of slots of one pool. A pool asks for one when it has no free slot; while the
budget lasts it gets it, and only when it is spent are rows evicted. How large a slab is, and what
else a pool takes, follows from the budget (sizes.py).

A pool that comes late must not starve: each pool has a **floor**, an equal part of half the budget
(and one slab at least). A pool below its floor may take a slab from the pool that is furthest above
its own; that pool evicts the rows of its last slab first.

The budget may change (`resize`). Every pool then takes the sizes of the new one, as if it had been
made with it: slabs are only the steps in which slots come and go, so no slot moves for that. If the
pools hold more than the new budget, the largest release slabs until they do not. Rejected: slabs
that stay as they were made. A cache could then not become smaller than the slabs of its first
budget, and one that grew a thousandfold would do so in steps too small to be worth one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from embstore.errors import CapacityError


class Holder(Protocol):
    """A pool, as the arena sees it."""

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab's rows and metadata."""

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

    def release_slabs(self, count: int) -> None:
        """As `release_slab`, of so many slabs at once, though never of the first."""

    def least_bytes_of(self, budget_bytes: int) -> int:
        """Return the bytes it would hold with one slab, were that the budget."""

    def fit_budget(self, budget_bytes: int) -> None:
        """Take the sizes of another budget. Rows stay, even those that are too many for it."""


class Arena:
    """The budget of one store's cache. Engine thread only."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.pools: list[Holder] = []
        self._fixed = False

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

    def resize(self, budget_bytes: int) -> None:
        """Change the budget; release what is held beyond it.

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
        while (needed := sum(pool.least_bytes_of(enough) for pool in self.pools)) > enough:
            enough = needed
        if enough > budget_bytes:
            raise CapacityError(
                f"expected cache_bytes of {enough} or more, which the store's {len(self.pools)} "
                f"row layouts need, found {budget_bytes}"
            )

    def _fit(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        for pool in self.pools:
            pool.fit_budget(budget_bytes)

    def _release_excess(self) -> None:
        """Have pools release slabs: the largest at the time an equal share of what is too much.

        A slab's share of the index goes with it, or few slabs would be left of small rows.
        """
        while (excess := self.memory_bytes - self.budget_bytes) > 0:
            donors = [pool for pool in self.pools if pool.slab_count > 1]
            if not donors:
                return
            donor = max(donors, key=lambda pool: pool.memory_bytes)
            slab_bytes = donor.memory_bytes // donor.slab_count
            donor.release_slabs(max(1, excess // (len(donors) * slab_bytes)))

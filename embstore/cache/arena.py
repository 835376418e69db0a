"""The arena: `cache_bytes` shared between pools, slab by slab, on demand.

A **slab** is a run of slots of one pool. A pool that has no free slot asks for a slab. As long as
the budget has room, the pool gets one; rows are evicted only when the budget is spent. The size of
a slab, and a pool's other memory, follow from the budget (sizes.py). All pools share one staging
buffer.

A pool that is created late must not starve. Each pool therefore has a **floor**: an equal part of
half the budget, and one slab at least. A pool below its floor may take a slab from the largest
pool; that pool evicts the rows of its last slab first.

**Aims** are target sizes of the pools. If aims are set, they decide which pool gets memory, instead
of the order of requests. A pool whose request for a slab was refused is **wanting** until it gets a
slab. If a wanting pool is below its aim, and the free memory is too small for one of its slabs,
`move_slice` makes a pool above its aim release slots. Free memory goes first to wanting pools below
their aims, then to any pool that asks. Aims are forgotten when a pool is added or removed, or the
budget changes, because they were computed for other pools or another budget. `era` counts these
events.

The budget may change (`resize`). Every pool then takes the sizes that follow from the new budget,
as if it had been created with this budget. No slot moves, since a slab is only the step in which
slots are added and released. If the pools take more than the new budget, the largest pools release
slabs until all pools fit. Rejected: slabs whose size never changes. A cache could then not become
smaller than the slabs of its first budget, and a cache that grew a thousandfold would do so in tiny
steps.

An index whose stash (its overflow area) is full becomes larger in the middle of a call, without a
check of the budget (index.py). The excess is released before the next command (`keep_to_budget`),
as if the budget had become smaller. Two excesses are tolerated. A pool of one slab keeps its larger
index, because it has no slab to release and its keys could not be found otherwise. As long as the
log has no room for the dirty rows that would have to leave, any pool keeps its larger index.
"""

from bisect import bisect_left
from typing import NamedTuple, Protocol

from embstore.cache.sizes import least_bytes
from embstore.cache.slots import PoolSlots
from embstore.errors import CapacityError

_BUDGET_BYTES_MAX = 1 << 62
"""A budget that is always enough for one slab of each pool, because slabs stop growing far below
it."""


class HostCache(NamedTuple):
    """The host memory that level two of a GPU's cache may take, and the reason for this amount."""

    budget_bytes: int = 0
    reason: str = ""


class Member(Protocol):
    """The parts of a pool that the arena uses."""

    slots: PoolSlots

    def release_slabs(self, count: int) -> None:
        """Evict the rows of the last `count` slabs and free these slabs, but never the first
        slab."""

    def release_slice(self) -> None:
        """Evict the rows of a part of the last slab and free that part, but never the first slab.
        The part is small enough that calls wait for it only briefly."""


class Arena:
    """The budget of one store's cache, or of its level two. Engine thread only."""

    def __init__(self, budget_bytes: int, option: str = "cache_bytes") -> None:
        self.budget_bytes = budget_bytes
        self.option = option  # the option's name for users
        self.pools: list[Member] = []
        self.is_fixed = False
        """Whether slabs must not move between pools, because a command is writing: it has reserved
        room in the log for rows in their present slots."""
        self.is_short = False
        """Whether a pool has been refused a slab since this attribute was set to False."""
        self.may_exceed = False
        """Whether an index has become larger since `keep_to_budget`."""
        self.may_move = False
        """Whether a pool has been refused a slab since `move_slice` last found nothing to do."""
        self.era = 0
        """Grows when a pool is added or removed, or the budget changes."""
        self.aims: dict[Member, int] = {}
        """Bytes that each pool should have. If the dict is empty, slabs are granted in the order of
        requests."""
        self._wanting: set[Member] = set()  # pools that got no slab since a refusal

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pools, and of their shared staging."""
        return sum(pool.slots.memory_bytes for pool in self.pools) + self.staging_bytes

    @property
    def bytes_for_pools(self) -> int:
        """Bytes of the budget that are not for staging."""
        return self.budget_bytes - self.staging_bytes

    @property
    def staging_bytes(self) -> int:
        """Bytes of the staging that all pools share."""
        return max((pool.slots.sizes.staging_bytes for pool in self.pools), default=0)

    def join(self, pool: Member) -> None:
        """Add a pool and grant its first slab; if necessary, another pool releases a slab for it.

        Raises
        ------
        CapacityError : the budget is too small for one slab of this pool.
        """
        aims, self.aims = self.aims, {}
        self.pools.append(pool)
        granted = False
        try:
            granted = self._is_granted(pool)
        finally:
            self.aims = aims
            if not granted:
                self.pools.remove(pool)
        if not granted:
            needed = _enough(self.budget_bytes + 1, [*self.pools, pool])
            raise CapacityError(
                f"{self.option} is {self.budget_bytes}, of which {self.memory_bytes} are in use: "
                f"with a pool of this row size it must be {needed} or more; open the store with a "
                f"larger {self.option}"
            )
        self._begin_era()

    def leave(self, pool: Member) -> None:
        """Remove a pool that has no tables any more."""
        self._begin_era()
        self.pools.remove(pool)

    def grant(self, pool: Member) -> bool:
        """Return whether the pool may add a slab. If the asking pool is below its floor, another
        pool may have to release a slab."""
        if self._is_granted(pool):
            self._wanting.discard(pool)
            return True
        if not self.is_fixed:
            self._wanting.add(pool)
            self.is_short = self.may_move = True
        return False

    def _is_granted(self, pool: Member) -> bool:
        if not self.aims:
            return self._has_come_first(pool)
        if self.is_fixed or not self._has_room(pool):
            return False
        return self._lacks(pool) or not any(self._lacks(p) for p in self._wanting)

    def _has_room(self, pool: Member) -> bool:
        """Whether the free memory is enough for a slab of `pool`."""
        needed = pool.slots.grown_bytes - pool.slots.memory_bytes
        return self.memory_bytes + needed <= self.budget_bytes

    def _has_come_first(self, pool: Member) -> bool:
        slots = pool.slots
        needed = slots.grown_bytes - slots.memory_bytes
        others = [p for p in self.pools if p is not pool]
        spare = sum(p.slots.memory_bytes - p.slots.sizes.least_bytes for p in others)
        if self.is_fixed:
            spare = 0
        if self.memory_bytes - spare + needed > self.budget_bytes:
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

    # Aims

    def aim(self, aims: dict[Member, int]) -> None:
        """Set the bytes that each pool should have; the sum of these bytes is the budget."""
        self.aims, self.may_move = dict(aims), True
        for pool, memory_bytes in aims.items():
            pool.slots.expect(memory_bytes)

    def _begin_era(self) -> None:
        """Drop the aims, so that slabs are granted in the order of requests again."""
        for pool in self.aims:
            pool.slots.expect(None)
        self.aims = {}
        self._wanting.clear()
        self.era += 1

    def move_slice(self) -> int:
        """Make the pool farthest above its aim release a slice, if a pool below its aim waits for a
        slab.

        Return the bytes that were released, 0 if there was nothing to do. Call this between
        commands.

        Raises
        ------
        CapacityError : the log has no room for dirty rows that must leave.
        """
        donor = None
        if any(self._lacks(pool) and not self._has_room(pool) for pool in self._wanting):
            donor = max(filter(self._exceeds, _donors(self.pools)), key=self._excess, default=None)
        if donor is None:
            self.may_move = False
            return 0
        before = donor.slots.memory_bytes
        donor.release_slice()
        return before - donor.slots.memory_bytes

    def _excess(self, pool: Member) -> int:
        return pool.slots.memory_bytes - self.aims.get(pool, pool.slots.memory_bytes)

    def _exceeds(self, pool: Member) -> bool:
        return 2 * self._excess(pool) > pool.slots.sizes.slab_bytes

    def _lacks(self, pool: Member) -> bool:
        return 2 * -self._excess(pool) > pool.slots.sizes.slab_bytes

    # The budget

    def resize(self, budget_bytes: int) -> None:
        """Change the budget, and release the excess.

        Raises
        ------
        CapacityError : the budget is too small for one slab of every pool, the system refuses the
            address space, or the disk has no room for dirty rows that must leave. The budget and
            all sizes are unchanged; some rows may have left the cache.
        """
        self._check_least(budget_bytes)
        self._begin_era()
        before = self.budget_bytes
        try:
            self._fit(budget_bytes)
            self._release_excess()
        except BaseException:
            self._fit(before)
            raise

    def _check_least(self, budget_bytes: int) -> None:
        enough = _enough(budget_bytes, self.pools)
        if enough > budget_bytes:
            raise CapacityError(
                f"expected cache_bytes of {enough} or more, which the store's {len(self.pools)} "
                f"pools need, found {budget_bytes}"
            )

    def _fit(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        for pool in self.pools:
            pool.slots.fit_budget(budget_bytes)

    def note_growth(self) -> None:
        """Remember that a pool's index has become larger, perhaps beyond the budget."""
        self.may_exceed = True

    def keep_to_budget(self) -> None:
        """Release slabs if enlarged indexes exceed the budget. Call this between commands.

        Raises
        ------
        CapacityError : the log has no room for dirty rows that must leave; `may_exceed` stays True.
        """
        self._release_excess()
        if self.memory_bytes > self.budget_bytes:
            for pool in self.pools:
                pool.slots.trim_index()
        self.may_exceed = False

    def _release_excess(self) -> None:
        """Release slabs until all pools fit the budget, or each has one slab. In each round the
        largest pool releases an equal share of the excess: the excess divided by the number of
        pools with more than one slab.

        The bytes of a slab include its share of the index. Otherwise a pool of small rows, whose
        index is large compared with its rows, would release too many slabs.
        """
        while (excess := self.memory_bytes - self.budget_bytes) > 0:
            donors = _donors(self.pools)
            if not donors:
                return
            donor = max(donors, key=_memory_bytes)
            slab_bytes = donor.slots.memory_bytes // donor.slots.slab_count
            donor.release_slabs(max(1, excess // (len(donors) * slab_bytes)))


def _enough(budget_bytes: int, pools: list[Member]) -> int:
    """Return the least budget, `budget_bytes` or more, in which each pool has one slab. This is
    more than the memory that the pools need under `budget_bytes`, because each pool needs more
    memory under a larger budget."""

    def is_enough(given: int) -> bool:
        return least_bytes([pool.slots.sizes_of(given) for pool in pools]) <= given

    return bisect_left(range(_BUDGET_BYTES_MAX), True, lo=budget_bytes, key=is_enough)


def _donors(pools: list[Member]) -> list[Member]:
    """Return the pools that have a slab to release."""
    return [pool for pool in pools if pool.slots.slab_count > 1]


def _memory_bytes(pool: Member) -> int:
    return pool.slots.memory_bytes

"""The arena with pools that only count: who gets a slab, who gives one, and who is refused."""

import pytest

from embstore.cache.arena import Arena
from embstore.errors import CapacityError

INDEX_BYTES = 10


class FakePool:
    """A pool that is nothing but its sizes. A slab takes `slab_bytes`, the index INDEX_BYTES."""

    def __init__(self, slab_bytes=100, staging_bytes=0):
        self.slots = self.sizes = self
        self.slab_bytes = slab_bytes
        self.slab_count = 0
        self.staging_bytes = staging_bytes
        self.released = []
        self.releases_left = 1 << 20

    def fit_budget(self, budget_bytes):
        pass

    def expect(self, memory_bytes):
        self.expected_bytes = memory_bytes

    def release_slice(self):
        self.release_slabs(1)

    @property
    def memory_bytes(self):
        return self.slab_count * self.slab_bytes + INDEX_BYTES

    @property
    def least_bytes(self):
        return self.slab_bytes + INDEX_BYTES

    def sizes_of(self, budget_bytes):
        return self

    @property
    def grown_bytes(self):
        return self.memory_bytes + self.slab_bytes

    def release_slabs(self, count):
        if not self.releases_left:
            raise CapacityError("the disk is full")
        self.releases_left -= 1
        count = min(count, self.slab_count - 1)
        self.slab_count -= count
        self.released.append(count)


def joined(arena, *sizes):
    pools = [FakePool(size) for size in sizes]
    for pool in pools:
        arena.join(pool)
        pool.slab_count = 1
    return pools


def with_slabs(arena, *slab_counts, kind=FakePool):
    """Return pools of slabs of 10 bytes, or of their kind."""
    pools = []
    for count in slab_counts:
        pools.append(kind(10))
        pools[-1].fit_budget(arena.budget_bytes)
        arena.join(pools[-1])
        pools[-1].slab_count = count
    return pools


def take_all(arena, pool, slabs=1 << 20):
    while slabs and arena.grant(pool):
        pool.slab_count += 1
        slabs -= 1
    assert arena.memory_bytes <= arena.budget_bytes


def asked():
    """Return a full arena, and two pools: the first is to release a slab, the second asked for."""
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    take_all(arena, first)
    arena.aim({first: 400, second: 600})
    assert not arena.grant(second)
    return arena, first, second


def test_a_slab_is_taken_from_another_only_when_the_budget_is_spent():
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    take_all(arena, first, slabs=4)
    take_all(arena, second, slabs=3)
    assert (first.slab_count, second.slab_count) == (5, 4)


def test_a_pool_at_its_floor_takes_nothing_from_others():
    arena = Arena(1_000)
    (first,) = joined(arena, 100)
    take_all(arena, first)
    (second,) = joined(arena, 100)
    take_all(arena, second)
    before = first.slab_count
    assert not arena.grant(second)
    assert first.slab_count == before


def test_the_pool_with_most_memory_gives():
    arena = Arena(2_000)
    small, large = joined(arena, 100, 100)
    take_all(arena, small, slabs=4)
    take_all(arena, large)
    (late,) = joined(arena, 100)
    take_all(arena, late)
    assert small.slab_count == 5


def test_no_pool_gives_its_last_slab():
    arena = Arena(320)
    first, second = joined(arena, 100, 100)
    with pytest.raises(CapacityError):
        arena.join(FakePool(100))
    assert (first.slab_count, second.slab_count) == (1, 1)


def test_floors_shrink_with_every_pool_and_all_fit():
    """Two layouts or thirty: each gets one slab at least, and equal demand means equal shares."""
    arena = Arena(10_000)
    pools = []
    for _ in range(30):
        pools += joined(arena, 100)
        take_all(arena, pools[-1])
    assert all(pool.slab_count >= 1 for pool in pools)
    for _ in range(3):
        for pool in pools:
            take_all(arena, pool)
    floor = arena.budget_bytes // (2 * len(pools))
    assert all(h.memory_bytes + h.slab_bytes > floor for h in pools)


def test_a_pool_that_could_not_join_leaves_no_trace():
    """The slab it needs cannot be given: the donor's dirty rows find no room in the log."""
    arena = Arena(1_000)
    (first,) = joined(arena, 100)
    take_all(arena, first)
    first.releases_left = 0
    with pytest.raises(CapacityError, match="the disk is full"):
        arena.join(FakePool(100))
    assert arena.pools == [first]


def test_pools_share_one_staging_as_long_as_the_longest():
    arena = Arena(1_000)
    pools = [FakePool(100, staging) for staging in (50, 300, 20)]
    for pool in pools:
        arena.join(pool)
        pool.slab_count = 1
    assert arena.memory_bytes == 3 * (100 + INDEX_BYTES) + 300
    assert arena.bytes_for_pools == 700
    take_all(arena, pools[0])
    assert sum(pool.memory_bytes for pool in pools) in range(700 - 99, 701)
    arena.leave(pools[1])
    assert arena.bytes_for_pools == 950


def test_a_refusal_names_the_least_budget_that_is_enough():
    arena = Arena(250)
    joined(arena, 100, 100)
    with pytest.raises(CapacityError, match=r"it must be 350 or more"):
        arena.join(FakePool(100, 20))
    arena.resize(350)
    joined(arena, 100)


# Another budget


def test_few_releases_are_enough_however_small_the_slabs():
    arena = Arena(10_000_000)
    pools = with_slabs(arena, 300_000, 250_000, 400_000)
    arena.resize(100_000)
    assert arena.memory_bytes <= 100_000
    assert sum(len(pool.released) for pool in pools) < 60


def test_a_pool_below_its_aim_gets_what_one_above_releases():
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    take_all(arena, first)
    arena.aim({first: 400, second: 600})
    assert (first.expected_bytes, second.expected_bytes) == (400, 600)
    before = first.slab_count
    assert not arena.move_slice()  # nobody wants it
    moves = 0
    while not arena.grant(second):
        assert arena.move_slice() == 100
        moves += 1
    second.slab_count += 1
    assert moves == before - first.slab_count == 1
    for _ in range(20):
        take_all(arena, first)
        take_all(arena, second)
        arena.move_slice()
    assert (first.memory_bytes, second.memory_bytes) == (410, 510)
    assert not arena.move_slice()
    assert not arena.may_move


def test_what_a_pool_released_is_not_taken_back_by_itself():
    arena, first, second = asked()
    arena.move_slice()
    assert not arena.grant(first)
    assert arena.grant(second)


def test_no_more_is_released_than_the_slab_that_was_asked_for():
    """A pool that asked once and was looked up no more had others release all that it lacked."""
    arena, first, _ = asked()
    assert arena.may_move
    while arena.move_slice():
        pass
    assert len(first.released) == 1
    assert not arena.may_move


def test_a_pool_that_could_not_join_changes_no_aim():
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    take_all(arena, first)
    aims = {first: 400, second: 600}
    arena.aim(aims)
    era = arena.era
    with pytest.raises(CapacityError, match="it must be"):
        arena.join(FakePool(2_000))
    assert (arena.aims, arena.era) == (aims, era)
    assert first.expected_bytes == 400
    assert not arena.grant(second)
    assert arena.move_slice()


def test_what_is_free_is_for_whoever_asks_as_long_as_nobody_below_its_aim_does():
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    arena.aim({first: 200, second: 800})
    take_all(arena, first)
    assert first.memory_bytes > 800


def test_aims_are_forgotten_when_pools_or_the_budget_change():
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    for change in (
        lambda: arena.join(FakePool(100)),
        lambda: arena.leave(arena.pools[-1]),
        lambda: arena.resize(2_000),
    ):
        arena.aim({first: 400, second: 600})
        change()
        assert not arena.aims
        assert first.expected_bytes is None


def test_no_room_in_the_log_leaves_a_move_undone():
    arena, first, _ = asked()
    first.releases_left = 0
    with pytest.raises(CapacityError):
        arena.move_slice()
    first.releases_left = 1
    assert arena.move_slice() == 100

"""The arena with holders that only count: who gets a slab, who gives one, and who is refused."""

import re

import pytest

from embstore.cache.arena import Arena
from embstore.errors import CapacityError

INDEX_BYTES = 10


class FakeHolder:
    """A pool that is nothing but its sizes. A slab takes `slab_bytes`, the index INDEX_BYTES."""

    def __init__(self, slab_bytes=100):
        self.slab_bytes = slab_bytes
        self.slab_count = 0
        self.refuses = False

    @property
    def memory_bytes(self):
        return self.slab_count * self.slab_bytes + INDEX_BYTES

    @property
    def least_bytes(self):
        return min(self.slab_count, 1) * self.slab_bytes + INDEX_BYTES

    @property
    def grown_bytes(self):
        return self.memory_bytes + self.slab_bytes

    def release_slab(self):
        if self.refuses:
            raise CapacityError("the disk is full")
        self.slab_count -= 1


def joined(arena, *sizes):
    holders = [FakeHolder(size) for size in sizes]
    for holder in holders:
        arena.join(holder)
        holder.slab_count = 1
    return holders


def take_all(arena, holder, slabs=1 << 20):
    while slabs and arena.grant(holder):
        holder.slab_count += 1
        slabs -= 1
    assert arena.memory_bytes <= arena.budget_bytes


def test_one_pool_may_take_the_whole_budget():
    arena = Arena(1_000)
    (pool,) = joined(arena, 100)
    take_all(arena, pool)
    assert pool.slab_count == 9


def test_a_slab_is_taken_from_another_only_when_the_budget_is_spent():
    arena = Arena(1_000)
    first, second = joined(arena, 100, 100)
    take_all(arena, first, slabs=4)
    take_all(arena, second, slabs=3)
    assert (first.slab_count, second.slab_count) == (5, 4)


def test_a_late_pool_gets_its_floor_from_a_pool_that_has_everything():
    arena = Arena(1_000)
    (first,) = joined(arena, 100)
    take_all(arena, first)
    (second,) = joined(arena, 100)
    take_all(arena, second)
    floor = arena.budget_bytes // 4
    assert floor - second.slab_bytes < second.memory_bytes <= floor
    take_all(arena, first)
    assert second.memory_bytes > floor - second.slab_bytes, "the floor must hold against others"


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
        arena.join(FakeHolder(100))
    assert (first.slab_count, second.slab_count) == (1, 1)


def test_floors_shrink_with_every_pool_and_all_fit():
    """Two layouts or thirty: each gets one slab at least, and equal demand means equal shares."""
    arena = Arena(10_000)
    holders = []
    for _ in range(30):
        holders += joined(arena, 100)
        take_all(arena, holders[-1])
    assert all(holder.slab_count >= 1 for holder in holders)
    for _ in range(3):
        for holder in holders:
            take_all(arena, holder)
    floor = arena.budget_bytes // (2 * len(holders))
    assert all(h.memory_bytes + h.slab_bytes > floor for h in holders)


def test_pools_of_different_slabs_share_in_bytes():
    arena = Arena(10_000)
    (wide,) = joined(arena, 1_500)
    take_all(arena, wide)
    (narrow,) = joined(arena, 50)
    take_all(arena, narrow)
    assert 10_000 // 4 - 50 < narrow.memory_bytes
    assert wide.memory_bytes >= 10_000 // 4


def test_what_a_pool_leaves_is_free_again():
    arena = Arena(1_000)
    (first,) = joined(arena, 100)
    take_all(arena, first)
    (second,) = joined(arena, 100)
    arena.leave(first)
    take_all(arena, second)
    assert second.slab_count == 9


def test_a_pool_that_cannot_have_one_slab_is_refused_by_figures():
    arena = Arena(300)
    joined(arena, 100)
    late = FakeHolder(250)
    with pytest.raises(CapacityError) as refused:
        arena.join(late)
    assert late not in arena.pools
    figures = [int(number) for number in re.findall(r"\d+", str(refused.value))]
    assert {300, 110} <= set(figures), "the budget, and what is in use of it"
    assert "cache_bytes" in str(refused.value)


def test_a_pool_that_could_not_join_leaves_no_trace():
    """The slab it needs cannot be given: the donor's dirty rows find no room in the log."""
    arena = Arena(1_000)
    (first,) = joined(arena, 100)
    take_all(arena, first)
    first.refuses = True
    with pytest.raises(CapacityError, match="the disk is full"):
        arena.join(FakeHolder(100))
    assert arena.pools == [first]

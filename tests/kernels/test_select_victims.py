"""Scores and victims, against sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.arrays import EMPTY_KEY
from tests.kernels.samples import devices

SEED = 13
CLOCK_MASK = (1 << 40) - 1
COUNT_MAX = (1 << 23) - 1


def expected(scores, slot_keys, clock, count):
    slots = np.arange(len(scores))
    candidates = slots[(slot_keys != EMPTY_KEY) & ((scores & CLOCK_MASK) != clock)]
    order = np.lexsort((candidates, scores[candidates]))
    return sorted(candidates[order[:count]].tolist())


def select(device, scores, slot_keys, clock, count):
    victims = np.full(count, -7)
    found = device.select_victims(scores, slot_keys, clock, count, victims)
    assert (victims[found:] == -7).all()
    return victims[:found].tolist()


def check(scores, slot_keys, clock, count):
    for device in devices():
        found = select(device, scores, slot_keys, clock, count)
        assert found == expected(scores, slot_keys, clock, count)


slots = st.lists(
    st.tuples(st.integers(0, 3) | st.just(COUNT_MAX), st.integers(0, 6), st.booleans()),
    max_size=60,
)


@settings(deadline=None)  # the first call may compile
@given(slots, st.integers(0, 6), st.integers(0, 70))
def test_victims_are_the_lowest_scores_in_order_of_slot(drawn, clock, count):
    scores = np.array([count << 40 | clock for count, clock, _ in drawn], np.int64)
    slot_keys = np.array([i if used else EMPTY_KEY for i, (*_, used) in enumerate(drawn)], np.int64)
    check(scores, slot_keys, clock, count)


@pytest.mark.parametrize("count", [1, 100, 4_999, 30_000])
@pytest.mark.parametrize("kind", ["lru", "lfu", "equal", "wide"])
def test_victims_of_many_slots(kind, count):
    rng = np.random.default_rng(SEED)
    clocks = rng.integers(0, 1 << 30, 20_000)
    counts = np.minimum(rng.zipf(1.4, 20_000), COUNT_MAX)
    scores = {
        "lru": clocks,
        "lfu": counts << 40 | clocks,
        "equal": np.full(20_000, 3),
        "wide": rng.integers(0, 1 << 63, 20_000),
    }[kind]
    slot_keys = np.where(rng.random(20_000) < 0.1, EMPTY_KEY, np.arange(20_000))
    check(scores, slot_keys, 5, count)


def test_what_this_clock_has_touched_is_no_victim():
    scores = np.array([4, 9, 2 << 40 | 9, 8])
    assert select(devices()[0], scores, np.arange(4), 9, 4) == [0, 3]


def test_touch_lru_is_the_clock():
    for device in devices():
        scores = np.array([1, 2, 3])
        device.touch(scores, np.array([2, -1, 0]), 8, False)
        assert scores.tolist() == [8, 2, 8]


def test_touch_lfu_counts_and_saturates():
    for device in devices():
        scores = np.array([0, 5 << 40 | 3, COUNT_MAX << 40 | 7, 4])
        device.touch(scores, np.array([0, 1, -1, 2]), 9, True)
        assert scores.tolist() == [1 << 40 | 9, 6 << 40 | 9, COUNT_MAX << 40 | 9, 4]


def test_age_scores_halves_counts_and_keeps_clocks():
    scores = np.array([3, 1 << 40 | 5, 5 << 40 | CLOCK_MASK, COUNT_MAX << 40])
    devices()[0].age_scores(scores)
    assert scores.tolist() == [3, 5, 2 << 40 | CLOCK_MASK, COUNT_MAX // 2 << 40]


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.integers(0, 4), max_size=50))
def test_count_accesses_counts_positions_with_a_slot(inverse):
    slots = np.array([3, -1, 0, -1, 9])
    positions = np.array(inverse, np.int32)
    expected_count = sum(slots[i] >= 0 for i in inverse)
    assert devices()[0].count_accesses(positions, slots) == expected_count

"""Scores and victims, against sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.arrays import EMPTY_KEY
from embstore.kernels.slots import COUNT_NONE, COUNT_UP, FORESEEN, PENDING, PIN_ONE
from tests.kernels.samples import batch_of, contents_of, devices, slots_with

SEED = 13
CLOCK_MASK = (1 << 40) - 1
COUNT_MAX = (1 << 11) - 1


def expected(scores, slot_keys, clock, count):
    slots = np.arange(len(scores))
    may_go = (scores >= 0) & (scores < PIN_ONE) & ((scores & CLOCK_MASK) != clock)
    candidates = slots[(slot_keys != EMPTY_KEY) & may_go]
    order = np.lexsort((candidates, scores[candidates]))
    return sorted(candidates[order[:count]].tolist())


def scored(device, scores, slot_keys=None):
    """Return slots with these scores."""
    keys = np.arange(len(scores)) if slot_keys is None else slot_keys
    rows = np.zeros((len(scores), 4), np.float32)
    slab_slots = 4096 if len(scores) > 4096 else 16
    return slots_with(device, rows, keys=keys, scores=scores, slab_slots=slab_slots)


def select(device, scores, slot_keys, clock, count):
    memory = scored(device, scores, slot_keys)
    victims, scores_of_victims = device.select_victims(memory, len(scores), clock, count)
    assert victims.dtype == scores_of_victims.dtype == np.int64
    assert np.array_equal(scores_of_victims, scores[victims])
    return victims.tolist()


def check(scores, slot_keys, clock, count):
    for device in devices():
        found = select(device, scores, slot_keys, clock, count)
        assert found == expected(scores, slot_keys, clock, count)


slots = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, FORESEEN, PIN_ONE, PENDING, PENDING + PIN_ONE]),
        st.integers(0, 3) | st.just(COUNT_MAX),
        st.integers(0, 6),
        st.booleans(),
    ),
    max_size=60,
)


@settings(deadline=None)  # the first call may compile
@given(slots, st.integers(0, 6), st.integers(0, 70))
def test_victims_are_the_lowest_scores_in_order_of_slot(drawn, clock, count):
    scores = np.array([high | count << 40 | clock for high, count, clock, _ in drawn], np.int64)
    slot_keys = np.array([i if used else EMPTY_KEY for i, (*_, used) in enumerate(drawn)], np.int64)
    check(scores, slot_keys, clock, count)


@pytest.mark.parametrize("count", [1, 100, 4_999, 30_000])
@pytest.mark.parametrize("kind", ["lru", "lfu", "equal", "wide", "pinned"])
def test_victims_of_many_slots(kind, count):
    rng = np.random.default_rng(SEED)
    clocks = rng.integers(0, 1 << 30, 20_000)
    counts = np.minimum(rng.zipf(1.4, 20_000), COUNT_MAX)
    scores = {
        "lru": clocks,
        "lfu": counts << 40 | clocks,
        "equal": np.full(20_000, 3),
        "wide": rng.integers(0, PIN_ONE, 20_000),
        "pinned": clocks + rng.choice([0, FORESEEN, PIN_ONE, 1 << 62, PENDING], 20_000),
    }[kind]
    slot_keys = np.where(rng.random(20_000) < 0.1, EMPTY_KEY, np.arange(20_000))
    check(scores, slot_keys, 5, count)


@pytest.mark.parametrize("slot_count", [4095, 4096, 4097, 8192, 8193])
def test_victims_of_slots_that_fill_ranges(slot_count):
    """Ties are taken from the lowest slots, whichever range of slots they are in."""
    scores = np.arange(slot_count) % 3
    for count in (slot_count // 3 - 1, slot_count // 3 + 2, slot_count - 1, slot_count):
        check(scores, np.arange(slot_count), 1, count)


def test_only_slots_that_are_asked_for_are_victims():
    scores = np.arange(40)[::-1].copy()
    for device in devices():
        memory = scored(device, scores)
        assert device.select_victims(memory, 30, 99, 3)[0].tolist() == [27, 28, 29]


def test_no_victims():
    for device in devices():
        memory = scored(device, np.full(5, 9))
        for slot_count, clock, count in ((0, 1, 4), (5, 9, 4), (5, 1, 0)):
            found = device.select_victims(memory, slot_count, clock, count)
            assert [array.tolist() for array in found] == [[], []]
        free = scored(device, np.zeros(5, np.int64), np.full(5, EMPTY_KEY))
        assert len(device.select_victims(free, 5, 1, 3)[0]) == 0


def test_what_this_clock_has_touched_is_no_victim():
    scores = np.array([4, 9, 2 << 40 | 9, 8])
    for device in devices():
        assert select(device, scores, np.arange(4), 9, 4) == [0, 3]


def touched(device, scores, slots, clock, counting, *, on_device):
    memory = scored(device, np.array(scores))
    slots = np.array(slots, np.int64)
    device.touch(memory, device.upload(slots) if on_device else slots, clock, counting)
    return device.read_range(memory, 0, len(scores)).scores.tolist()


@pytest.mark.parametrize("on_device", [False, True])
def test_touch_lru_is_the_clock(on_device):
    for device in devices():
        found = touched(device, [1, 2, 3], [2, -1, 0], 8, COUNT_NONE, on_device=on_device)
        assert found == [8, 2, 8]


@pytest.mark.parametrize("on_device", [False, True])
def test_touch_lfu_counts_and_saturates(on_device):
    scores = [0, 5 << 40 | 3, COUNT_MAX << 40 | 7, 4]
    for device in devices():
        found = touched(device, scores, [0, 1, -1, 2], 9, COUNT_UP, on_device=on_device)
        assert found == [1 << 40 | 9, 6 << 40 | 9, COUNT_MAX << 40 | 9, 4]
        assert touched(device, scores, [], 9, COUNT_UP, on_device=on_device) == scores


def test_age_scores_halves_counts_and_keeps_clocks():
    scores = np.array([3, 1 << 40 | 5, 5 << 40 | CLOCK_MASK, COUNT_MAX << 40, 7 << 40])
    for device in devices():
        memory = scored(device, scores)
        device.age_scores(memory, 0)
        device.age_scores(memory, 4)
        _, keys, found, dirty = contents_of(device, memory, 5)
        assert found == [3, 5, 2 << 40 | CLOCK_MASK, COUNT_MAX // 2 << 40, 7 << 40]
        assert (keys, dirty) == (list(range(5)), [False] * 5)


@settings(deadline=None)  # the first call may compile
@given(st.data())
def test_count_accesses_counts_positions_of_ids_and_those_with_a_slot(data):
    keys = data.draw(st.lists(st.integers(0, 6), max_size=50))
    low = data.draw(st.integers(0, 4))
    slots = np.array(data.draw(st.lists(st.sampled_from([-1, 0, 9]), max_size=5)), np.int64)
    weights = data.draw(st.none() | st.just(np.arange(len(keys)) * 3 + (1 << 33)))
    ids = {}
    inverse = [ids.setdefault(key, len(ids)) for key in keys]
    accesses = hits = 0
    for position, id in enumerate(inverse):
        if low <= id < low + len(slots):
            count = 1 if weights is None else int(weights[position])
            accesses += count
            hits += count * (slots[id - low] >= 0)
    for device in devices():
        batch = batch_of(device, np.array(keys, np.int64))
        d_slots, high = device.upload(slots), low + len(slots)
        assert device.count_accesses(batch, d_slots, low, high, weights) == (accesses, hits)


def test_count_accesses_of_many():
    """More than a block, whose threads add up among each other."""
    rng = np.random.default_rng(SEED)
    keys = rng.integers(0, 3_000, 20_000)
    slots, weights = rng.integers(-1, 2, 1_000), rng.integers(1, 1 << 35, 20_000)
    for device in devices():
        batch = batch_of(device, keys)
        inverse = device.download(batch.inverse)
        counted = (inverse >= 500) & (inverse < 1_500)
        hit = counted & (slots[np.where(counted, inverse - 500, 0)] >= 0)
        expected = int(weights[counted].sum()), int(weights[hit].sum())
        d_slots = device.upload(slots)
        assert device.count_accesses(batch, d_slots, 500, 1_500, weights) == expected
        numbers = int(counted.sum()), int(hit.sum())
        assert device.count_accesses(batch, d_slots, 500, 1_500, None) == numbers

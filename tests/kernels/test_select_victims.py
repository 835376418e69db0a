"""Victims, against sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.arrays import EMPTY_KEY
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_slots import _ROUNDS
from embstore.score import FORESEEN, PENDING, PIN_ONE
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.samples import devices, slots_with

SEED = 13
CLOCK_MASK = (1 << 40) - 1
COUNT_MAX = (1 << 11) - 1


def expected(scores, slot_keys, clock, count):
    slots = np.arange(len(scores))
    is_running = (scores & (FORESEEN | CLOCK_MASK)) == clock
    may_go = (scores >= 0) & (scores < PIN_ONE) & ~is_running
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
    found = device.slots.select_victims(memory, len(scores), clock, count)()
    assert found.slots.dtype == found.scores.dtype == np.int64
    assert np.array_equal(found.scores, scores[found.slots])
    return found.slots.tolist()


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


@pytest.mark.parametrize("count", range(1, 8))
def test_victims_whose_scores_are_farther_apart_at_every_look(count):
    """On a GPU it takes more rounds than are begun at once."""
    scores = np.array([0, 1, 3, 1 << 14, 1 << 27, 1 << 38, 1 << 50])
    check(scores, np.arange(len(scores)), 9, count)
    runtime = EmulatedRuntime()
    looked = len(_launches(runtime, lambda device: select(device, scores, scores, 9, count)))
    assert looked == (_ROUNDS if count > 3 else 2 * _ROUNDS)


def _launches(runtime, work):
    """Return the names of the kernels that narrow a search, as launched by work with a device."""
    names, launch = [], runtime.launch

    def noted(kernel, blocks, *arguments):
        names.append(kernel)
        launch(kernel, blocks, *arguments)

    runtime.launch = noted
    device = GpuDevice(runtime, 1)
    work(device)
    device.close()
    return [name for name in names if name == "narrow_search"]


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
        assert device.slots.select_victims(memory, 30, 99, 3)().slots.tolist() == [27, 28, 29]


def test_no_victims():
    for device in devices():
        memory = scored(device, np.full(5, 9))
        for slot_count, clock, count in ((0, 1, 4), (5, 9, 4), (5, 1, 0)):
            found = device.slots.select_victims(memory, slot_count, clock, count)()
            assert len(found.slots) == len(found.scores) == 0
            assert len(found.contents(found.slots).keys) == 0
        free = scored(device, np.zeros(5, np.int64), np.full(5, EMPTY_KEY))
        assert len(device.slots.select_victims(free, 5, 1, 3)().slots) == 0


@pytest.mark.parametrize("first", [1, 7, 12, 20, 50])
@pytest.mark.parametrize("count", [1, 12, 30])
def test_the_first_victims_are_read_with_them(count, first):
    rng = np.random.default_rng(SEED)
    scores, rows = rng.integers(0, 9, 40), rng.standard_normal((40, 8)).astype(np.float32)
    dirty, keys = rng.random(40) < 0.5, np.where(np.arange(40) < 25, np.arange(40), EMPTY_KEY)
    lowest = np.lexsort((np.arange(25), scores[:25]))[: min(first, count)]
    for device in devices():
        memory = slots_with(device, rows, keys=keys, scores=scores, dirty=dirty)
        answer = device.slots.select_victims(memory, 40, 99, count, first, with_rows=True)
        here = answer().contents(lowest)
        assert here.keys.tolist() == lowest.tolist()
        assert here.scores.tolist() == scores[lowest].tolist()
        assert here.dirty.tolist() == dirty[lowest].tolist()
        if isinstance(device, GpuDevice):
            assert here.rows.tobytes() == rows[lowest].tobytes()

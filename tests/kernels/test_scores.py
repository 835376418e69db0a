"""The bits of a score: pins, pending rows, announced uses, counts; against plain fields."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore import score as layout
from embstore.device.gpu_work import NOTHING_FOUND
from embstore.score import COUNT_KEEP, COUNT_NONE, COUNT_UP, NO_USE, UNCHANGED
from tests.kernels.samples import contents_of, devices, down, gpu_device, slots_with, up

SEED = 17
PINS_MAX, COUNT_MAX, CLOCK_MAX = 2047, 2047, (1 << 40) - 1


@dataclass(frozen=True)
class Score:
    """The fields; of a foreseen slot, `clock` is the rank of its next use."""

    pending: int = 0
    pins: int = 0
    foreseen: int = 0
    count: int = 0
    clock: int = 0

    def __int__(self):
        use = self.clock << 11 | self.count if self.foreseen else self.count << 40 | self.clock
        return (self.pins << 52 | self.foreseen << 51 | use) - (self.pending << 63)


scores_of_slots = st.builds(
    Score,
    pending=st.integers(0, 1),
    pins=st.sampled_from([0, 0, 1, 2, PINS_MAX - 1, PINS_MAX]),
    foreseen=st.integers(0, 1),
    count=st.sampled_from([0, 1, 5, COUNT_MAX - 1, COUNT_MAX]),
    clock=st.sampled_from([0, 1, 7, CLOCK_MAX]),
)
countings = st.sampled_from([COUNT_NONE, COUNT_UP, COUNT_KEEP])
some_slots = st.lists(scores_of_slots, min_size=1, max_size=40)


def numbers(scores):
    return np.array([int(score) for score in scores], np.int64)


def scored(device, scores):
    """Return slots with these scores, keys from 0 on, every third dirty."""
    count = len(scores)
    return slots_with(
        device, np.zeros((count, 4), np.float32), keys=np.arange(count), scores=numbers(scores),
        dirty=np.arange(count) % 3 == 0,
    )  # fmt: skip


def check(device, memory, scores):
    """The slots have these scores, and what else `scored` gave them."""
    count = len(scores)
    _, keys, found, dirty = contents_of(device, memory, count)
    assert found == numbers(scores).tolist()
    assert keys == list(range(count))
    assert dirty == [slot % 3 == 0 for slot in range(count)]


def given_to(device, slots, on_device):
    slots = np.array(slots, np.int64)
    return up(device, slots) if on_device else slots


def with_gaps(slots):
    """Return the slots with a -1, which is skipped, before, between and behind them."""
    return [-1, *(place for slot in slots for place in (slot, -1))]


# Each verb by itself, on scores of every kind


def taken(data, scores, allowed=lambda score: True):
    """Draw unique slots."""
    slots = [slot for slot, score in enumerate(scores) if allowed(score)]
    return data.draw(st.lists(st.sampled_from(slots), unique=True) if slots else st.just([]))


@given(some_slots, st.booleans(), st.data())
def test_pin_and_unpin_count_what_changes_sides(scores, on_device, data):
    rising = taken(data, scores, lambda score: score.pins < PINS_MAX)
    falling = taken(data, scores, lambda score: score.pins > 0)
    for device in devices():
        for slots, step, verb in ((rising, 1, device.slots.pin), (falling, -1, device.slots.unpin)):
            after = list(scores)
            for slot in slots:
                after[slot] = replace(scores[slot], pins=scores[slot].pins + step)
            alone = sum(min(scores[slot].pins, after[slot].pins) == 0 for slot in slots)
            memory = scored(device, scores)
            found = verb(memory, given_to(device, with_gaps(slots), on_device))()
            assert (type(found), found) == (int, alone)
            check(device, memory, after)


@given(some_slots, st.data())
def test_pending_slots_are_counted_and_arrive(scores, data):
    coming = taken(data, scores)
    asked = data.draw(st.lists(st.integers(-1, len(scores) - 1), max_size=60))
    after = [replace(s, pending=0) if i in coming else s for i, s in enumerate(scores)]
    for device in devices():
        memory, d_asked = scored(device, scores), given_to(device, asked, True)
        for now in (scores, after):
            found = device.slots.count_pending(memory, d_asked)
            assert (type(found), found) == (int, sum(now[i].pending for i in asked if i >= 0))
            device.slots.arrive(memory, np.array(coming, np.int64))
        check(device, memory, after)


@given(some_slots, st.booleans(), st.data())
def test_foresee_ranks_by_the_next_use_or_ends_that_and_leaves_pins_and_counts_alone(
    scores, on_device, data
):
    slots, after, ranks = taken(data, scores), list(scores), []
    for slot in slots:
        ranks.append(data.draw(st.sampled_from([UNCHANGED, NO_USE, 0, 3, CLOCK_MAX])))
        if ranks[-1] >= 0:
            after[slot] = replace(scores[slot], foreseen=1, clock=ranks[-1])
        elif scores[slot].foreseen and ranks[-1] == NO_USE:
            after[slot] = replace(scores[slot], foreseen=0, clock=9)
    slots, ranks = [*slots, -1], np.array([*ranks, 5], np.int64)
    for device in devices():
        memory = scored(device, scores)
        device.slots.foresee(memory, given_to(device, slots, on_device), ranks, 9)
        check(device, memory, after)


@given(some_slots, countings, st.booleans(), st.data())
def test_touch_leaves_pins_alone_and_ends_what_was_foreseen(scores, counting, on_device, data):
    slots, after = taken(data, scores), list(scores)
    for slot in slots:
        before = scores[slot].count
        count = {COUNT_NONE: 0, COUNT_UP: min(before + 1, COUNT_MAX), COUNT_KEEP: before}[counting]
        after[slot] = replace(scores[slot], foreseen=0, count=count, clock=9)
    for device in devices():
        memory = scored(device, scores)
        device.slots.touch(memory, given_to(device, [*slots, -1], on_device), 9, counting)
        check(device, memory, after)


@given(some_slots, st.booleans(), st.data())
def test_set_counts_leaves_all_else_alone(scores, on_device, data):
    slots, after, counts = taken(data, scores), list(scores), []
    for slot in slots:
        counts.append(data.draw(st.integers(0, COUNT_MAX)))
        after[slot] = replace(scores[slot], count=counts[-1])
    slots, counts = [*slots, -1], np.array([*counts, 3], np.int64)
    for device in devices():
        memory = scored(device, scores)
        device.slots.set_counts(memory, given_to(device, slots, on_device), counts)
        check(device, memory, after)


@given(some_slots, st.integers(0, 40))
def test_ageing_leaves_all_but_counts_alone(scores, slot_count):
    slot_count = min(slot_count, len(scores))
    halved = [replace(score, count=score.count // 2) for score in scores]
    after = halved[:slot_count] + scores[slot_count:]
    for device in devices():
        memory = scored(device, scores)
        device.slots.age_scores(memory, slot_count)
        check(device, memory, after)


@pytest.mark.parametrize("on_device", [False, True])
def test_counts_of_many_slots(on_device):
    """More than a block has threads, which add up among each other."""
    rng, count = np.random.default_rng(SEED), 3_000
    pins, pending = rng.integers(0, 3, count), rng.integers(0, 2, count)
    scores = np.where(pending, layout.PENDING, 0) + (pins << layout.PIN_SHIFT) + 7
    slots = rng.permutation(count)[:2_500]
    pinned = slots[pins[slots] > 0]
    for device in devices():
        rows = np.zeros((count, 4), np.float32)
        memory = slots_with(device, rows, keys=np.arange(count), scores=scores, slab_slots=1024)
        assert (
            device.slots.unpin(memory, given_to(device, pinned, on_device))()
            == (pins[pinned] == 1).sum()
        )
        assert (
            device.slots.pin(memory, given_to(device, pinned, on_device))()
            == (pins[pinned] == 1).sum()
        )
        assert (
            device.slots.pin(memory, given_to(device, slots, on_device))()
            == (pins[slots] == 0).sum()
        )
        d_slots = given_to(device, slots, True)
        assert device.slots.count_pending(memory, d_slots) == pending[slots].sum()
        device.slots.arrive(memory, slots)
        assert device.slots.count_pending(memory, d_slots) == 0
        expected = pending.copy()
        expected[slots] = 0
        assert ((device.slots.read_range(memory, 0, count).scores < 0) == expected).all()


def test_a_block_of_threads_that_have_several_slots_each_touches_every_slot_once():
    """Also where slots that differ have one place in the block's memory."""
    device, rng, n = gpu_device(), np.random.default_rng(SEED), 33_000
    before = [Score(count=int(count), clock=3) for count in rng.integers(0, 9, 2500)]
    before[7] = Score(foreseen=1, clock=9)  # whose bits of a clock are those of the call, by chance
    memory = scored(device, before)
    slots = np.where(rng.random(n) < 0.3, 7, rng.integers(0, 2500, n)).astype(np.int32)
    findings = up(device, np.array(NOTHING_FOUND))
    device.work.launch(
        "touch_once", n, *memory.rows.arguments, up(device, slots), np.int64(n), np.int64(9),
        np.int32(COUNT_UP), findings,
    )  # fmt: skip
    assert down(device, findings)[0] == len(np.unique(slots))
    after = [replace(score, foreseen=0, count=score.count + 1, clock=9) for score in before]
    for untouched in np.setdiff1d(np.arange(2500), slots):
        after[untouched] = before[untouched]
    check(device, memory, after)

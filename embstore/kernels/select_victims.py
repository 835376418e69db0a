"""Scores of slots, and the slots of lowest score.

The low 51 bits of a score are `count << 40 | clock`, the clock being that of the last call that
touched the slot, below 2**40; the count is below 2**11, and what it counts is the policy's affair
(0 under LRU, touches under LFU, the level of a row's profile under rank). Above them a score may
say that the slot is FORESEEN, when they are a rank until the next touch, that it has pins, or that
it is PENDING (`embstore.kernels.slots`).

    touch            of slots[i], foreseen no longer: the clock; and the count, that of a foreseen
                     one being 0 before, is 0 (COUNT_NONE), one more but saturating (COUNT_UP), or
                     as it was (COUNT_KEEP)
    set_counts       of slots[i], unless foreseen: count = counts[i]
    age_scores       of all slots, unless foreseen: count becomes count // 2, the clock stays
    pin              of slots[i]: pins + 1; how many had none
    unpin            of slots[i]: pins - 1; how many have none now
    count_pending    how many slots[i] are PENDING
    arrive           of slots[i]: no longer PENDING
    foresee          of slots[i], where ranks[i] >= 0: low 52 bits = ranks[i]
    forget_foreseen  of all slots that are foreseen: low 52 bits = 0
    select_victims   the `wanted` lowest (score, slot) among resident slots (slot_keys[slot] is not
                     EMPTY_KEY) with a score in [0, PIN_ONE), neither pending nor pinned, whose low
                     40 bits are not the present clock, in ascending order of slot
    count_accesses   over the positions p of ids in [low, high): how many, and how many have
                     slots[inverse[p] - low] >= 0, each as often as counts[p] says

Selection takes no sort (embstore.device.threshold): scores are counted by bins until the last
victim's is known; then one pass collects. Counting passes are split over slots. The result is a
function of the arguments alone. `slots` may hold -1, which is passed over, but for those of arrive.
Nobody looks whether the 2,048th pin is set, or one taken that is not there: whoever counts pins
bounds them.

A touch ends what was foreseen, because only the present clock in the low 40 bits says that the
running call needs the row: a rank left in its place would let the call take its own row as victim.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Int,
    Int32sIn,
    Int64s,
    Int64sIn,
    building_block,
    kernel,
    prefetch,
    prefetch_to_write,
)
from embstore.arrays import EMPTY_KEY
from embstore.kernels.slots import (
    CLOCK_BITS,
    CLOCK_MASK,
    COUNT_MAX,
    COUNT_NONE,
    COUNT_UP,
    FORESEEN,
    PENDING,
    PIN_ONE,
    PIN_SHIFT,
    PINS_MAX,
)

BIN_BITS = 11
BINS = 1 << BIN_BITS
_AHEAD = 16
_ABOVE_COUNT = -FORESEEN  # bits 51..63
_ABOVE_RANK = -PIN_ONE  # bits 52..63


@kernel
def touch(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (u,), unique but for -1
    clock: Int,
    counting: Int,
) -> None:
    """Score the slots of a call."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        slot = slots[i]
        if slot < 0:
            continue
        score = scores[slot]
        before = 0 if score & FORESEEN else (score >> CLOCK_BITS) & COUNT_MAX
        count = 0 if counting == COUNT_NONE else min(before + (counting == COUNT_UP), COUNT_MAX)
        scores[slot] = (score & _ABOVE_RANK) | count << CLOCK_BITS | clock


@kernel
def set_counts(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique but for -1
    counts: Int64sIn,  # (n,), at most COUNT_MAX
) -> None:
    """Give the slots their counts."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        if slots[i] >= 0 and not scores[slots[i]] & FORESEEN:
            kept = scores[slots[i]] & (_ABOVE_COUNT | CLOCK_MASK)
            scores[slots[i]] = kept | counts[i] << CLOCK_BITS


@kernel
def age_scores(scores: Int64s) -> None:
    """Halve every count."""
    for slot in range(scores.shape[0]):
        score = scores[slot]
        half = ((score >> CLOCK_BITS) & COUNT_MAX) >> 1
        aged = (score & (_ABOVE_COUNT | CLOCK_MASK)) | half << CLOCK_BITS
        scores[slot] = score if score & FORESEEN else aged


@kernel
def pin(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique but for -1
) -> int:
    """Give each slot a pin more; return how many had none."""
    start = scores.ctypes.data
    count = 0
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        if slots[i] >= 0:
            score = scores[slots[i]]
            count += (score >> PIN_SHIFT) & PINS_MAX == 0
            scores[slots[i]] = score + PIN_ONE
    return count


@kernel
def unpin(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique but for -1
) -> int:
    """Take a pin from each slot; return how many have none now."""
    start = scores.ctypes.data
    count = 0
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        if slots[i] >= 0:
            score = scores[slots[i]] - PIN_ONE
            count += (score >> PIN_SHIFT) & PINS_MAX == 0
            scores[slots[i]] = score
    return count


@kernel
def count_pending(
    scores: Int64sIn,  # (slot count,)
    slots: Int64sIn,  # (n,), -1 passed over
) -> int:
    """Return how many of the slots wait for their row."""
    start = scores.ctypes.data
    count = 0
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch(start + slots[i + _AHEAD] * 8)
        if slots[i] >= 0:
            count += scores[slots[i]] < 0
    return count


@kernel
def arrive(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique
) -> None:
    """Say that the rows of the slots are there."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        scores[slots[i]] &= ~PENDING


@kernel
def foresee(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique but for -1
    ranks: Int64sIn,  # (n,), below PIN_ONE; a negative one is passed over
) -> None:
    """Rank the slots."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        if slots[i] >= 0 and ranks[i] >= 0:
            scores[slots[i]] = (scores[slots[i]] & _ABOVE_RANK) | ranks[i]


@kernel
def forget_foreseen(scores: Int64s) -> None:
    """Rank the slots that are foreseen below all others."""
    for slot in range(scores.shape[0]):
        score = scores[slot]
        scores[slot] = score & _ABOVE_RANK if score & FORESEEN else score


@building_block
def _is_candidate(score: np.int64, key: np.int64, clock: int, floor: int, ceiling: int) -> bool:
    resident = (key != EMPTY_KEY) & ((score & CLOCK_MASK) != clock)
    return bool(resident & (score >= floor) & (score < ceiling))


@kernel
def score_range(
    scores: Int64sIn,  # (slot count,)
    slot_keys: Int64sIn,  # (slot count,)
    clock: Int,
    floor: Int,
    ceiling: Int,
    result: Int64s,  # (3,): candidates with floor <= score < ceiling, their minimum and maximum
    low: Int,
    high: Int,
) -> None:
    """Write `result` for the slots of [low, high)."""
    count, lowest, highest = 0, ceiling, floor
    for slot in range(low, high):
        score = scores[slot]
        candidate = _is_candidate(score, slot_keys[slot], clock, floor, ceiling)
        count += candidate
        lowest = min(lowest, score if candidate else ceiling)
        highest = max(highest, score if candidate else floor)
    result[0], result[1], result[2] = count, lowest, highest


@kernel
def count_scores(
    scores: Int64sIn,  # (slot count,)
    slot_keys: Int64sIn,  # (slot count,)
    clock: Int,
    floor: Int,
    ceiling: Int,
    shift: Int,  # a bin is 2**shift scores; bin 0 begins at floor
    bins: Int64s,  # (BINS,)
    low: Int,
    high: Int,
) -> None:
    """Count the candidates of [low, high) with floor <= score < ceiling into bins."""
    bins[:] = 0
    for slot in range(low, high):
        score = scores[slot]
        if _is_candidate(score, slot_keys[slot], clock, floor, ceiling):
            bins[(score - floor) >> shift] += 1


@kernel
def collect_victims(
    scores: Int64sIn,  # (slot count,)
    slot_keys: Int64sIn,  # (slot count,)
    clock: Int,
    threshold: Int,
    wanted: Int,  # victims in all
    ties: Int,  # of them with score == threshold: those of lowest slot
    victims: Int64s,  # (>= wanted,)
) -> int:
    """Write the candidates below the threshold and `ties` at it, ascending; return how many."""
    count = 0
    for slot in range(scores.shape[0]):
        score = scores[slot]
        if _is_candidate(score, slot_keys[slot], clock, 0, threshold + 1):
            if score == threshold:
                if ties == 0:
                    continue
                ties -= 1
            victims[count] = slot
            count += 1
            if count == wanted:
                break
    return count


@kernel
def count_accesses(
    inverse: Int32sIn,  # (n,)
    slots: Int64sIn,  # (high - low,)
    low: Int,
    high: Int,
    counts: Int64sIn,  # (n,), or (0,) for 1 each
    result: Int64s,  # (2,): accesses, and those that hit
) -> None:
    """Write `result`."""
    accesses, hits = 0, 0
    for position in range(inverse.shape[0]):
        id = np.int64(inverse[position])
        if low <= id < high:
            count = counts[position] if counts.shape[0] else 1
            accesses += count
            hits += count * (slots[id - low] >= 0)
    result[0], result[1] = accesses, hits

"""Scores of slots, and the slots of lowest score.

A score is the clock of the last call that touched the slot (LRU), or `count << 40 | clock` (LFU);
the clock is below 2**40, the count below 2**23, so that a score is never negative.

    touch            scores[slots[i]] = clock, or (count + 1, saturating) << 40 | clock
    age_scores       count becomes count // 2, the clock stays
    select_victims   the `wanted` lowest (score, slot) among resident slots (slot_keys[slot] is not
                     EMPTY_KEY) whose clock is not the present one, in ascending order of slot
    count_accesses   over the positions p of ids in [low, high): how many, and how many have
                     slots[inverse[p] - low] >= 0, each as often as counts[p] says

Selection takes no sort (embstore.device.threshold): scores are counted by bins until the last
victim's is known; then one pass collects. Counting passes are split over slots. The result is a
function of the arguments alone. `slots` may hold -1, which is passed over.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Bool,
    Int,
    Int32sIn,
    Int64s,
    Int64sIn,
    building_block,
    kernel,
    prefetch_to_write,
)
from embstore.arrays import EMPTY_KEY

CLOCK_BITS = 40
CLOCK_MASK = (1 << CLOCK_BITS) - 1
COUNT_MAX = (1 << 23) - 1
BIN_BITS = 11
BINS = 1 << BIN_BITS
_AHEAD = 16


@kernel
def touch(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (u,), unique but for -1
    clock: Int,
    lfu: Bool,
) -> None:
    """Score the slots of a call."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        slot = slots[i]
        if slot < 0:
            continue
        if lfu:
            count = min((scores[slot] >> CLOCK_BITS) + 1, COUNT_MAX)
            scores[slot] = count << CLOCK_BITS | clock
        else:
            scores[slot] = clock


@kernel
def age_scores(scores: Int64s) -> None:
    """Halve every count."""
    for slot in range(scores.shape[0]):
        score = scores[slot]
        scores[slot] = (score >> (CLOCK_BITS + 1)) << CLOCK_BITS | (score & CLOCK_MASK)


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

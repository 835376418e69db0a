"""The slots of lowest score.

select_victims: the slots of the `wanted` lowest pairs (score, slot) among candidates, in ascending
order of slot. A candidate is a resident slot (slot_keys[slot] is not EMPTY_KEY) with a score in [0,
PIN_ONE), which is neither pending nor pinned. A slot that has the present clock, and is not
foreseen, is no candidate.

Selection needs no sort (see embstore.device.threshold). Scores are counted in bins until the score
of the last victim is known; then one pass collects the victims. Counting passes can be split over
slots. The result depends only on the arguments.
"""

import numpy as np

from embstore.arithmetic.jit import Int, Int64s, Int64sIn, building_block, kernel
from embstore.arrays import EMPTY_KEY
from embstore.score import CLOCK_MASK, FORESEEN

BIN_BITS = 11
BINS = 1 << BIN_BITS
HIGHEST, VICTIMS, STATE, DONE = 2, 6, 7, 2
"""HIGHEST, VICTIMS and STATE are positions in the state of a search on a GPU, where the highest
score, the number of victims, and the progress are stored. DONE is the last value of the
progress."""


@building_block
def _is_candidate(score: np.int64, key: np.int64, clock: int, floor: int, ceiling: int) -> bool:
    is_running = (score & (FORESEEN | CLOCK_MASK)) == clock
    return bool((key != EMPTY_KEY) & (not is_running) & (score >= floor) & (score < ceiling))


@kernel
def score_range(
    scores: Int64sIn,  # (slot count,)
    slot_keys: Int64sIn,  # (slot count,)
    clock: Int,
    floor: Int,
    ceiling: Int,
    result: Int64s,  # (3,): candidates in [floor, ceiling), least and highest score
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
    wanted: Int,  # the number of all victims
    ties: Int,  # victims with score == threshold; they are the lowest such slots
    victims: Int64s,  # (>= wanted,)
) -> int:
    """Write the candidates below the threshold, and the first `ties` candidates at the threshold,
    in ascending order of slot. Return how many were written."""
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

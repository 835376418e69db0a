"""Scores of slots, as calls, policies, pins and announced steps change them.

The fields of a score stand in `embstore.score`.

    touch            of slots[i], foreseen no longer: the clock; and the count is 0 (COUNT_NONE),
                     one more but saturating (COUNT_UP), or as it was (COUNT_KEEP)
    set_counts       of slots[i]: count = counts[i]
    age_scores       of all slots: count becomes count // 2
    add_pins         of slots[i]: pins + step; how many have none, before or after
    count_pending    how many slots[i] are PENDING
    arrive           of slots[i]: no longer PENDING
    foresee          of slots[i]: foreseen, with ranks[i]; where that is negative, foreseen no
                     longer, with a clock if it was. The count stays

`slots` are unique but for -1, which is skipped; those of arrive have no -1. Pins are not checked
for overflow or underflow: whoever counts pins bounds them.

A touch ends what was foreseen, because only the present clock in the low 40 bits says that the
running call needs the row: a rank left in its place would let the call take its own row as victim.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Int,
    Int64s,
    Int64sIn,
    building_block,
    kernel,
    prefetch,
    prefetch_to_write,
)
from embstore.score import (
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
    RANK_SHIFT,
    UNCHANGED,
)

_AHEAD = 16
_ABOVE_COUNT = -FORESEEN  # bits 51..63
_ABOVE_RANK = -PIN_ONE  # bits 52..63
_PIN_BITS = PINS_MAX << PIN_SHIFT


@building_block
def count_of(score: np.int64) -> np.int64:
    """Return the count of a slot."""
    count: np.int64 = (score if score & FORESEEN else score >> CLOCK_BITS) & COUNT_MAX
    return count


@building_block
def with_count(score: np.int64, count: np.int64) -> np.int64:
    """Return a score with another count."""
    if score & FORESEEN:
        after: np.int64 = (score & ~COUNT_MAX) | count
    else:
        after = (score & (_ABOVE_COUNT | CLOCK_MASK)) | count << CLOCK_BITS
    return after


@building_block
def touched(score: np.int64, clock: int, counting: int) -> np.int64:
    """Return the score of a slot that is touched."""
    before = int(count_of(score))
    count = 0 if counting == COUNT_NONE else min(before + (counting == COUNT_UP), COUNT_MAX)
    after: np.int64 = (score & _ABOVE_RANK) | count << CLOCK_BITS | clock
    return after


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
        scores[slot] = touched(scores[slot], clock, counting)


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
        if slots[i] >= 0:
            scores[slots[i]] = with_count(scores[slots[i]], counts[i])


@kernel
def age_scores(scores: Int64s) -> None:
    """Halve every count."""
    for slot in range(scores.shape[0]):
        scores[slot] = with_count(scores[slot], count_of(scores[slot]) >> 1)


@kernel
def add_pins(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique but for -1
    step: Int,  # 1 or -1
) -> int:
    """Change each slot's pins; return how many have none, before or after."""
    start = scores.ctypes.data
    count = 0
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        if slots[i] >= 0:
            before = scores[slots[i]]
            after = before + step * PIN_ONE
            count += (before & _PIN_BITS == 0) | (after & _PIN_BITS == 0)
            scores[slots[i]] = after
    return count


@kernel
def count_pending(
    scores: Int64sIn,  # (slot count,)
    slots: Int64sIn,  # (n,), -1 skipped
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
    ranks: Int64sIn,  # (n,), at most CLOCK_MASK; negative: no use is known, or UNCHANGED
    clock: Int,
) -> None:
    """Rank the slots by their next use."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        if slots[i] < 0 or ranks[i] == UNCHANGED:
            continue
        score = scores[slots[i]]
        if ranks[i] >= 0:
            above = (score & _ABOVE_RANK) | FORESEEN
            scores[slots[i]] = above | ranks[i] << RANK_SHIFT | count_of(score)
        elif score & FORESEEN:
            scores[slots[i]] = (score & _ABOVE_RANK) | count_of(score) << CLOCK_BITS | clock

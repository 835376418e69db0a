"""Scores of slots, as calls, policies, pins and announced steps change them.

`embstore.score` describes the fields of a score.

    touch            slots[i] get the clock, and are no longer foreseen; the count becomes 0
                     (COUNT_NONE), one more but saturating (COUNT_UP), or stays (COUNT_KEEP)
    set_counts       the count of slots[i] becomes counts[i]
    age_scores       the count of every slot becomes count // 2
    add_pins         slots[i] get pins + step; returns how many have no pin before or after
    count_pending    returns how many slots[i] are PENDING
    arrive           slots[i] are no longer PENDING
    foresee          slots[i] become foreseen, with ranks[i]. With the rank NO_USE, a foreseen slot
                     is no longer foreseen, and gets the clock; with UNCHANGED it does not change.
                     The count stays

`slots` are unique, except for -1, which is skipped; arrive gets no -1. Pins are not checked for
overflow or underflow: the caller bounds the number of pins.

A touched slot is no longer foreseen, because the selection of victims recognizes a row that the
running call needs only by the present clock in the low 40 bits of its score. With a rank in these
bits, the call could evict a row that it needs.
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
    """Return the score of a slot after a touch."""
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
    """Set the scores of the slots that a call touches."""
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
    """Set the counts of the slots."""
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
    """Add `step` to the pins of each slot; return how many slots have no pin before or after."""
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
    """Return how many of the slots are pending."""
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
    """Mark the rows of the slots as arrived."""
    start = scores.ctypes.data
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            prefetch_to_write(start + slots[i + _AHEAD] * 8)
        scores[slots[i]] &= ~PENDING


@kernel
def foresee(
    scores: Int64s,  # (slot count,)
    slots: Int64sIn,  # (n,), unique but for -1
    ranks: Int64sIn,  # (n,), at most CLOCK_MASK; negative: NO_USE or UNCHANGED
    clock: Int,
) -> None:
    """Score the slots by the next use of their rows."""
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

"""Metadata of slots: what the cache writes when rows come and go.

    place_keys      of slots[i]: key = keys[i], score = 0, dirty = 0
    place_pending   of slots[i]: key = keys[i], score = PENDING, dirty = 0
    clear_slots     of slots[i]: key = EMPTY_KEY, dirty = 0

A **score** is an int64 that says when a slot may be given to another row, in fields:

    bit 63        PENDING: the slot has its key, its row is still on its way; the score is negative
    bits 52..62   pins: how many hold the row where it is, at most PINS_MAX
    bit 51        FORESEEN: the bits below rank the row by its next announced use
    bits 40..50   where it is not foreseen: calls that touched the row (LFU), the level of its
                  profile (rank), 0 under LRU
    bits 0..39    where it is not foreseen: the clock of the last of them

So the scores of the slots that may be given away are [0, PIN_ONE), and among them a row that will
be used is above every row of which nothing is known. A touch ends FORESEEN, and counts from 1.

Slots are unique. A free slot keeps its score, which nothing reads: a slot without a key is no
candidate of `select_victims`, and starts again when it is given to a row. Each is one pass of
NumPy's own indexing, which costs nanoseconds a slot beside the row that moves with it. What changes
scores of slots that stay is in `select_victims`.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, Keys

Int64s = NDArray[np.int64]
Flags = NDArray[np.uint8]

PENDING = -(1 << 63)
PIN_SHIFT = 52
PIN_ONE = 1 << PIN_SHIFT
PINS_MAX = (1 << 11) - 1
FORESEEN = 1 << 51
CLOCK_BITS = 40
CLOCK_MASK = (1 << CLOCK_BITS) - 1
COUNT_MAX = (1 << 11) - 1
COUNT_NONE, COUNT_UP, COUNT_KEEP = range(3)
"""What a touch does to the count: makes it 0, one more, or leaves it."""


def place_keys(
    keys_of_slots: Keys,  # (slot count,)
    scores: Int64s,  # (slot count,)
    dirty: Flags,  # (slot count,)
    slots: Int64s,  # (n,)
    keys: Keys,  # (n,)
) -> None:
    """Give the slots to rows."""
    keys_of_slots[slots] = keys
    scores[slots] = 0
    dirty[slots] = 0


def place_pending(
    keys_of_slots: Keys,  # (slot count,)
    scores: Int64s,  # (slot count,)
    dirty: Flags,  # (slot count,)
    slots: Int64s,  # (n,)
    keys: Keys,  # (n,)
) -> None:
    """Give the slots to rows that are still on their way."""
    keys_of_slots[slots] = keys
    scores[slots] = PENDING
    dirty[slots] = 0


def clear_slots(
    keys_of_slots: Keys,  # (slot count,)
    dirty: Flags,  # (slot count,)
    slots: Int64s,  # (n,)
) -> None:
    """Take the slots from their rows."""
    keys_of_slots[slots] = EMPTY_KEY
    dirty[slots] = 0

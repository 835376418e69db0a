"""Metadata of slots: what the cache writes when rows come and go.

    place_keys    of slots[i]: key = keys[i], score = score, dirty = 0
    clear_slots   of slots[i]: key = EMPTY_KEY, dirty = 0

Slots are unique. A free slot keeps its score, which nothing reads: a slot without a key is no
candidate of `select_victims`, and starts again when it is given to a row. Each is one pass of
NumPy's own indexing, which costs nanoseconds a slot, little compared to the row that moves with it.
What changes scores of slots that stay is in `scores`.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, Keys

Int64s = NDArray[np.int64]
Flags = NDArray[np.uint8]


def place_keys(
    keys_of_slots: Keys,  # (slot count,)
    scores: Int64s,  # (slot count,)
    dirty: Flags,  # (slot count,)
    slots: Int64s,  # (n,)
    keys: Keys,  # (n,)
    score: int,
) -> None:
    """Give the slots to rows."""
    keys_of_slots[slots] = keys
    scores[slots] = score
    dirty[slots] = 0


def clear_slots(
    keys_of_slots: Keys,  # (slot count,)
    dirty: Flags,  # (slot count,)
    slots: Int64s,  # (n,)
) -> None:
    """Take the slots from their rows."""
    keys_of_slots[slots] = EMPTY_KEY
    dirty[slots] = 0

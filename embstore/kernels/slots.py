"""The metadata of slots: changes when rows enter and leave slots.

    place_keys    slots[i] get key = keys[i], score = score, dirty = 0
    clear_slots   slots[i] get key = EMPTY_KEY, dirty = 0

Slots are unique. A free slot keeps its old score, which is never used: a slot without a key is no
candidate of `select_victims`, and gets a new score with its next row. Each function is one pass of
NumPy's indexing, which takes nanoseconds per slot: little, compared with the copy of the row.
`scores.py` changes the scores of slots that keep their rows.
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
    """Assign the slots to rows."""
    keys_of_slots[slots] = keys
    scores[slots] = score
    dirty[slots] = 0


def clear_slots(
    keys_of_slots: Keys,  # (slot count,)
    dirty: Flags,  # (slot count,)
    slots: Int64s,  # (n,)
) -> None:
    """Free the slots."""
    keys_of_slots[slots] = EMPTY_KEY
    dirty[slots] = 0

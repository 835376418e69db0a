"""The slots of the keys of a table's steps, and which rows have to be requested.

A key has a slot from its first use until `window` steps have passed without a use. Then the slot is
free for another key. The keys with slots are kept in ascending order, with their slots and last
steps, so that a step's keys are found by binary search. The search takes a few milliseconds for
20,000 keys among 160,000. The reader's thread makes it, up to `lookahead` steps ahead of the loop.

Slots are assigned in the order of the steps, and rows are put in slots in the same order. When step
n assigns a slot to another key, the slot is no longer read for its old key: only steps before n
could read the slot, and the loop has finished these steps when the rows of step n are put in their
slots.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Inverse, Keys
from embstore_training.replicas.rows import Slots


class Placed(NamedTuple):
    """The slots of one table's keys in a step."""

    slots: Slots  # (u,), of the step's keys
    new: Inverse  # ascending positions of the keys whose rows have to be requested
    freed: Slots  # slots that have lost their key; this step may have reused them
    slot_count: int  # the number of slots now


class TableSlots:
    """The slots of one table. Only one thread uses them, the reader's."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._keys = np.empty(0, np.int64)  # ascending
        self._slots = np.empty(0, np.int64)  # slot of each key
        self._last = np.empty(0, np.int64)  # last step that has each key
        self._free = np.empty(0, np.int64)
        self._count = 0

    def place(self, keys: Keys, step: int) -> Placed:
        """Assign slots to the distinct keys of the next step, and return the slots."""
        freed = self._expire(step)
        slots, is_known = np.empty(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            is_known = self._keys[at] == keys
            known = at[is_known]
            slots[is_known] = self._slots[known]
            self._last[known] = step
        new = np.flatnonzero(~is_known)
        slots[new] = self._take(len(new))
        self._insert(keys[new], slots[new], step)
        return Placed(slots, new.astype(np.uint32), freed, self._count)

    def _expire(self, step: int) -> Slots:
        is_kept = self._last >= step - self._window
        freed: Slots = self._slots[~is_kept]
        if len(freed):
            self._keys, self._slots = self._keys[is_kept], self._slots[is_kept]
            self._last = self._last[is_kept]
            self._free = np.concatenate([self._free, freed])
        return freed

    def _take(self, count: int) -> Slots:
        taken, self._free = self._free[:count], self._free[count:]
        more = count - len(taken)
        made = np.arange(self._count, self._count + more)
        self._count += more
        return np.concatenate([taken, made])

    def _insert(self, keys: Keys, slots: Slots, step: int) -> None:
        order: NDArray[np.int64] = np.argsort(keys)
        places = np.searchsorted(self._keys, keys[order])
        self._keys = np.insert(self._keys, places, keys[order])
        self._slots = np.insert(self._slots, places, slots[order])
        self._last = np.insert(self._last, places, step)

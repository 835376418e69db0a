"""Deletion: rows of a pool get their initial content again.

A deleted row of level one stays in its slot, which gets the initial content and becomes clean.
Therefore pins, announced steps, and the slots that calls have found all stay valid. A deleted row
of level two leaves its slot. A row that is stored in the log or the base is hidden by a tombstone.
Tombstones are logged only for stored keys.

A deletion reads no row. Like other writes, it can be refused only before anything changes: by the
constructor of `Deletion`, or when the caller reserves room. An error of `apply` is irreversible.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.cache.pool import Pool

KEYS_MAX = 1 << 20
"""The most keys of one deletion. It bounds the memory that a deletion takes on the device."""


class Deletion:
    """The deletion of rows of one pool. Engine thread only; no other call may run before `apply`.

    Raises
    ------
    CapacityError : the device has too little memory. Nothing has changed.
    """

    def __init__(self, pool: Pool, keys: Keys) -> None:
        """Prepare to delete the rows of unique row keys."""
        pool.finder.finish_arriving()  # rows under way have old content
        if pool.device.is_queued:
            pool.device.memory.secure(len(keys))
        self._pool, self._keys = pool, keys
        self._is_stored = pool.storage.rows.has(keys)
        self.tombstones = int(np.count_nonzero(self._is_stored))
        """The number of tombstones to log. Room for them must be reserved before `apply`."""

    def apply(self) -> NDArray[np.bool_]:
        """Delete the rows. Return an (n,) bool array that is True for rows that had been
        written."""
        pool, keys = self._pool, self._keys
        pool.followers.prepare(len(keys))
        was_written = self._is_stored.copy()
        d_keys = pool.device.memory.upload(keys)
        slots = pool.device.memory.download(pool.finder.locate(d_keys)[0])
        here = np.flatnonzero(slots >= 0)
        was_written[here] |= self._begin_anew(slots[here], keys[here])
        if pool.level_two is not None:
            absent = np.flatnonzero(slots < 0)
            was_written[absent] |= pool.level_two.delete(keys[absent])
        pool.storage.appender.bury(keys[self._is_stored])
        pool.followers.written(d_keys)
        return was_written

    def _begin_anew(self, slots: NDArray[np.int64], keys: Keys) -> NDArray[np.bool_]:
        """Give rows of level one their initial content, and mark their slots as clean. Return which
        of these rows were dirty."""
        pool = self._pool
        if not len(slots):
            return np.zeros(0, np.bool_)
        dirty = pool.device.slots.read_slots(pool.slots.memory, slots)().dirty.copy()
        pool.residency.initialize(pool.slots.memory.rows, slots, keys)
        pool.evictor.mark(slots[dirty], dirty=False)
        pool.evictor.dirty_max -= int(np.count_nonzero(dirty))
        return dirty

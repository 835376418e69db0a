"""The host tier: rows that left a GPU's slots for want of room, in pinned memory below them.

A row that leaves is what storage has (a dirty one is logged first) or what its initializer makes.
So the tier is a copy, which may be dropped at any time; no bit depends on it, only what a miss
costs. A row is in the pool or in the tier, never in both: it leaves the tier when it comes back, or
a row that is written then would leave an old copy behind.

The GPU's kernels move rows both ways, in the order of all its other work; the host knows keys and
slots, and waits for nothing. A row that comes back is read over the bus where it is: no call to
storage, no checksum, no staging.

The tier has the parts of a pool: slots by slabs, of a budget of its own (`host_cache_bytes`), an
index, and scores, by which the rows that left the GPU longest ago leave. It is as a rule far larger
than what one call moves; where it is not, it keeps the last of a call's rows. Where memory is
refused, of the host or for what a copy sends, rows are not kept, or come from storage: no call
fails for want of the tier.

Rejected: a copy that stays when its row comes back. It saves writing clean rows over the bus a
second time; but each row that is written or logged has to be looked for then, and the host keeps
rows that the GPU has.
"""

import numpy as np

from embstore.arrays import Keys
from embstore.cache.arena import Arena
from embstore.cache.counters import Counters
from embstore.cache.eviction import Evictor
from embstore.cache.finder import Finder
from embstore.cache.levels import Ranks
from embstore.cache.pins import PoolPins
from embstore.cache.policies import POLICIES
from embstore.cache.scores import Scores
from embstore.cache.slots import PoolSlots
from embstore.device.base import Array, Device, Slots
from embstore.errors import CapacityError
from embstore.layout import Layout
from embstore.storage.storage import Storage


class HostTier:
    """The rows of one layout that left the GPU. Engine thread only.

    Raises
    ------
    CapacityError : the arena cannot give it one slab, which it takes when the first rows leave.
    """

    def __init__(
        self, device: Device, storage: Storage, arena: Arena, layout: Layout, tables: set[int]
    ) -> None:
        below = device.below()
        assert below is not None, f"{device.name} has nothing below"
        self.device, self.arena, self.layout, self.tables = below, arena, layout, tables
        self.slots = PoolSlots(below, layout, arena.budget_bytes, storage.irreversible)
        self.pins = PoolPins(below, self.slots)
        self.finder = Finder(below, self.slots)
        self.counters = Counters()
        self._scores = Scores(below, self.slots, POLICIES["lru"], Ranks().of)
        self._evictor = Evictor(
            below, storage, arena, layout, self.slots, self.pins, self.finder, self._scores,
            self.counters,
        )  # fmt: skip
        self._above = device.rows
        self._locked = 0  # slots that the running call has found or filled
        self._is_locked = False
        arena.join(self._evictor)

    def look(self, keys: Keys) -> Slots:
        """Return the slots of unique row keys, -1 where absent; their rows stay until `unlock`."""
        self._scores.tick()
        slots = np.empty(len(keys), np.int64)
        missing = self.device.keys.find(self.slots.index.synchronize(), keys, slots)
        self._locked, self._is_locked = len(keys) - missing, True
        self._scores.touch(slots, self._locked)
        return slots

    def unlock(self) -> None:
        """Rows that `look` has found may leave."""
        self._is_locked = False

    def bring(self, keys: Keys, found: Slots, rows: Array, slots: Slots) -> bool:
        """Move rows, none of them absent, from where `look` has found them to slots of the pool.

        False: they have not come, and are in the tier no more.
        """
        try:
            self._above.copy_slots(self.slots.memory.rows, found, rows, slots)
            have_come = True
        except CapacityError:
            have_come = False
        self._evictor.free(found, keys)
        return have_come

    def keep(self, keys: Keys, rows: Array, slots: Slots) -> None:
        """Take the rows that are about to leave slots of the pool."""
        if not self._is_locked:
            self._scores.tick()
            self._locked = 0
        while self.slots.free_count < len(keys) and self._grow():
            pass
        count = min(len(keys), self.slots.count - self._locked)
        if count <= 0:
            return
        keys, slots = keys[-count:], slots[-count:]
        places = self._evictor.take(count)
        try:
            self._above.copy_slots(rows, slots, self.slots.memory.rows, places)
        except CapacityError:
            self.slots.put_back(count)
            return
        score = self._scores.first_score
        self.slots.index.place(keys, places, self.slots.memory, self.slots.count, score)
        self._scores.count_touches(count)
        self._locked += count

    def _grow(self) -> bool:
        try:
            return self._evictor.grow()
        except CapacityError:  # of the first slab
            return False

    def purge(self, table_id: int) -> None:
        """Remove the rows of a table."""
        self._evictor.free_table(table_id)

    def close(self) -> None:
        """Leave the arena, and free all memory."""
        self.arena.leave(self._evictor)
        self.finder.close()
        self.slots.close()

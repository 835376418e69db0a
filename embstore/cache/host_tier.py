"""The host tier: rows that left a GPU's slots for want of room, in pinned memory below them.

It is the second level of a write-back cache. A row is in the pool or in the tier, never in both. It
goes down as it is, also when it is dirty, and is logged when it leaves the tier, or when a commit
writes what is dirty; a call whose victims find room here logs nothing. When it comes back it is
dirty again. So the newest content of a row is its slot's in the pool, else its slot's here, else
storage's.

The GPU's kernels move rows both ways, in the order of all its other work; the host knows keys,
slots and flags, and waits for nothing. A row that comes back is read over the bus where it is: no
call to storage, no checksum, no staging. What is logged the host reads itself, once the GPU has
done all that was queued: no row is torn (`HostRows`).

The tier has the parts of a pool: slots by slabs, of a budget of its own (`host_cache_bytes`), an
index, and scores, by which the rows that left the GPU longest ago leave. It is as a rule far larger
than what one call moves; where it is not, it keeps the last of a call's rows. Where memory is
refused, of the host or for what a copy sends, rows are logged in place of being kept, or logged and
read from storage in place of being brought: no call fails for want of the tier.

Rejected: a copy that stays when its row comes back. It saves writing clean rows over the bus a
second time; but each row that is written or logged has to be looked for then, and the host keeps
rows that the GPU has.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.cache.arena import Arena
from embstore.cache.counters import Counters
from embstore.cache.eviction import Evictor
from embstore.cache.finder import Finder
from embstore.cache.levels import Ranks
from embstore.cache.pins import PoolPins
from embstore.cache.policies import POLICIES
from embstore.cache.scores import Scores
from embstore.cache.slots import PoolSlots
from embstore.device.base import Array, Device, SlotContents, Slots
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
        self,
        device: Device,
        storage: Storage,
        arena: Arena,
        layout: Layout,
        tables: set[int],
        counters: Counters,
    ) -> None:
        below = device.below()
        assert below is not None, f"{device.name} has nothing below"
        self.device, self.arena, self.layout, self.tables = below, arena, layout, tables
        self.slots = PoolSlots(below, layout, arena.budget_bytes, storage.irreversible)
        self.pins = PoolPins(below, self.slots)
        self.finder = Finder(below, self.slots)
        self._scores = Scores(below, self.slots, POLICIES["lru"], Ranks().of)
        self.evictor = Evictor(
            below, storage, arena, layout, self.slots, self.pins, self.finder, self._scores,
            counters,
        )  # fmt: skip
        self._above = device.rows
        self._locked = 0  # slots that the running call has found or filled
        self._is_locked = False
        arena.join(self.evictor)

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

    def bring(self, found: Slots, rows: Array, slots: Slots) -> NDArray[np.bool_] | None:
        """Copy rows, none of them absent, from where `look` has found them to slots of the pool;
        return which are dirty. `release` follows.

        None: they have not come, and are in the tier no more.
        """
        try:
            self._above.copy_slots(self.slots.memory.rows, found, rows, slots)
        except CapacityError:
            self.evictor.evict_all(found)
            return None
        return self.device.slots.read_slots(self.slots.memory, found)().dirty

    def release(self, keys: Keys, found: Slots) -> None:
        """Forget rows that were brought to slots of the pool, which the index has now."""
        here = self.device.slots.read_slots(self.slots.memory, found)()
        self.evictor.free(found, keys)
        self.evictor.dirty_max -= int(np.count_nonzero(here.dirty))

    def make_room(self, count: int) -> Slots:
        """Return places for up to `count` rows, for `keep`; others leave for them.

        Raises
        ------
        CapacityError : no room in the log for dirty rows that would have to leave.
        """
        if not self._is_locked:
            self._scores.tick()
            self._locked = 0
        while self.slots.free_count < count and self._grow():
            pass
        count = min(count, self.slots.count - self._locked)
        return self.evictor.take(count) if count > 0 else np.empty(0, np.int64)

    def put_back(self, places: Slots) -> None:
        """Free places again that `make_room` has returned."""
        self.slots.put_back(len(places))

    def keep(self, here: SlotContents, rows: Array, slots: Slots, places: Slots) -> bool:
        """Take rows that leave slots of the pool, of which `here` is known.

        False: they have not come, and the places are free again.
        """
        count, memory = len(places), self.slots.memory
        try:
            self._above.copy_slots(rows, slots, memory.rows, places)
        except BaseException as exc:
            self.put_back(places)
            if isinstance(exc, CapacityError):
                return False
            raise
        score = self._scores.first_score
        self.slots.index.place(here.keys, places, memory, self.slots.count, score)
        self._scores.count_touches(count)
        self.device.slots.mark(memory, places[here.dirty], dirty=True)
        self.evictor.dirty_max += int(np.count_nonzero(here.dirty))
        self._locked += count
        return True

    def find(self, keys: Keys) -> Slots:
        """Return the slots of unique row keys, -1 where absent, without a trace."""
        slots = np.empty(len(keys), np.int64)
        self.device.keys.find(self.slots.index.synchronize(), keys, slots)
        return slots

    def dirty_of(self, keys: Keys) -> tuple[NDArray[np.int64], Rows]:
        """Return which of unique row keys have a dirty row here, and copies of these."""
        slots = self.find(keys)
        here = np.flatnonzero(slots >= 0)
        dirty = here[self.device.slots.read_slots(self.slots.memory, slots[here])().dirty]
        return dirty, self.device.rows.read_rows(self.slots.memory.rows, slots[dirty])

    def copy(self, slots: Slots, rows: Array, places: Slots) -> None:
        """Copy rows of slots to places of rows of the GPU. Raises CapacityError."""
        self._above.copy_slots(self.slots.memory.rows, slots, rows, places)

    def _grow(self) -> bool:
        try:
            return self.evictor.grow()
        except CapacityError:  # of the first slab
            return False

    def purge(self, table_id: int) -> None:
        """Remove the rows of a table."""
        self.evictor.free_table(table_id)

    def close(self) -> None:
        """Leave the arena, and free all memory."""
        self.arena.leave(self.evictor)
        self.finder.close()
        self.slots.close()

"""Level two of the cache: rows that were evicted from a GPU's slots, in pinned host memory.

It is the second level of a write-back cache. A row is never in both levels. A row moves down
unchanged, even if it is dirty. A dirty row is logged when it leaves level two, or when a commit
writes dirty rows; a call whose victims find room here logs nothing. A row that was dirty when it
moved down is dirty again when it comes back. Therefore the newest content of a row is in its slot
of level one, else in its slot of level two, else in storage.

Level two has the parts of a pool: slots in slabs, under a separate budget (`host_cache_bytes`), an
index, and scores. By these scores clean rows leave first, and among clean rows the rows that left
level one longest ago. Only the row of a slot is in the host's memory. Its key, its score, its dirty
flag and the index are in the GPU's memory, about 40 bytes a slot, which count against the budget of
level one (`sizes.py`). The budget of level one counts the most memory that this metadata can take,
and not its current size. Therefore the growth of an index whose stash was full (`index.py`) is not
counted, although level one could release slabs for this growth. Since keys and scores are on the
GPU, the GPU alone finds rows, chooses victims and moves rows between the levels (`exchange.py`), in
the order of all its other work. So no row is torn, and the host waits only for a few numbers.

Level two is usually far larger than the rows that one call moves. If it is smaller, it keeps the
last of a call's victims. If the system refuses memory, rows are logged and not kept: no call fails
because level two lacks memory.

Rejected: a copy that stays in level two when its row goes up again. The copy would save writing
clean rows over the bus a second time. But every row that is written or logged would have to be
looked up in level two, and level two would keep rows that are also in level one.
"""

from contextlib import suppress

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
from embstore.device.base import Device
from embstore.device.values import Array, SlotContents, Slots
from embstore.errors import CapacityError
from embstore.layout import Layout
from embstore.storage.storage import PoolStorage


class LevelTwo:
    """The rows of one layout that left level one. Engine thread only.

    Raises
    ------
    CapacityError : the arena cannot grant one slab. The slab is added only when the first rows
        leave level one.
    """

    def __init__(
        self,
        device: Device,
        storage: PoolStorage,
        arena: Arena,
        above: PoolSlots,
        layout: Layout,
        tables: set[int],
        counters: Counters,
    ) -> None:
        assert device.levels is not None, f"a cache on {device.name} has one level"
        self.device = below = device.levels.below
        self.arena, self.layout, self.tables = arena, layout, tables
        self._above = above
        self.slots = PoolSlots(
            below, layout, above.sizes.below_bytes, storage.irreversible, row_keys=above.row_keys
        )
        self.pins = PoolPins(below, self.slots)
        self.finder = Finder(below, self.slots)
        self.scores = Scores(below, self.slots, POLICIES["lru"], Ranks(above.row_keys).of)
        self.evictor = Evictor(
            below, storage, arena, layout, self.slots, self.pins, self.finder, self.scores,
            counters, is_clean_first=True,
        )  # fmt: skip
        self.fit()
        arena.join(self.evictor)

    def make_room(self, count: int, staying: Array = (), stay_count: int = 0) -> Slots:
        """Return up to `count` free slots, as many as possible; other rows leave level two for
        them.

        staying : slots of level two whose rows do not leave; entries of -1 are no slots, and
            `stay_count` entries are slots

        Raises
        ------
        CapacityError : the log has no room for dirty rows that would have to leave.
        """
        self.scores.tick()
        while self.slots.free_count < count and self._grow():
            pass
        count = min(count, self.slots.count - stay_count)
        if stay_count and count > self.slots.free_count:
            self.scores.touch(staying, stay_count)
        return self.evictor.take(count) if count > 0 else np.empty(0, np.int64)

    def put_back(self, places: Slots) -> None:
        """Make slots that `make_room` has returned, and that got no row, free again."""
        self.slots.put_back(len(places))

    def keep(self, here: SlotContents, rows: Array, slots: Slots, places: Slots) -> bool:
        """Copy the rows that leave `slots` of level one, whose contents are `here`, to `places` of
        this level, and add their keys to the index.

        Return False if the rows could not be copied; in this case `places` are free again.
        """
        count, memory = len(places), self.slots.memory
        try:
            self.device.rows.copy_slots(rows, slots, memory.rows, places)
        except BaseException as exc:
            self.put_back(places)
            if isinstance(exc, CapacityError):
                return False
            raise
        score = self.scores.first_score
        self.slots.index.place(here.keys, places, memory, self.slots.count, score)
        self.scores.count_touches(count)
        self.evictor.mark(places[here.dirty], dirty=True)
        self.evictor.dirty_max += int(np.count_nonzero(here.dirty))
        return True

    def find(self, keys: Keys) -> Slots:
        """Return the slots of unique row keys, -1 where a key is absent; no score changes."""
        return self.device.memory.download(self.finder.locate(self.device.memory.upload(keys))[0])

    def dirty_of(self, keys: Keys) -> tuple[NDArray[np.int64], Rows]:
        """Return which of the unique row keys have a dirty row here, and copies of these rows."""
        slots = self.find(keys)
        here = np.flatnonzero(slots >= 0)
        dirty = here[self.device.slots.read_slots(self.slots.memory, slots[here])().dirty]
        return dirty, self.device.rows.read_rows(self.slots.memory.rows, slots[dirty])

    def delete(self, keys: Keys) -> NDArray[np.bool_]:
        """Remove the rows of unique row keys from this level. Return which keys had dirty rows."""
        slots, dirty = self.find(keys), np.zeros(len(keys), np.bool_)
        here = np.flatnonzero(slots >= 0)
        if len(here):
            dirty[here] = self.device.slots.read_slots(self.slots.memory, slots[here])().dirty
            self.evictor.free(slots[here], keys[here])
            self.evictor.dirty_max -= int(np.count_nonzero(dirty))
        return dirty

    def copy(self, slots: Slots, rows: Array, places: Slots) -> None:
        """Copy rows from slots of level two to slots of `rows` on the GPU. Raises CapacityError."""
        self.device.rows.copy_slots(self.slots.memory.rows, slots, rows, places)

    def fit(self) -> None:
        """Change the sizes to those that follow from the present budget of level one, because the
        metadata of this level's slots counts against that budget. Excess slabs are released, unless
        the log has no room for their dirty rows."""
        slots = self.slots
        slots.fit_budget(self._above.sizes.below_bytes, slots.sizes.slab_slots)
        beyond = slots.slab_count - slots.sizes.slots_max // slots.sizes.slab_slots
        if beyond > 0:
            with suppress(CapacityError):
                self.evictor.release_slabs(beyond)

    def _grow(self) -> bool:
        try:
            return self.evictor.grow()
        except CapacityError:  # for the first slab
            return False

    def purge(self, table_id: int) -> None:
        """Remove the rows of a table."""
        self.evictor.free_table(table_id)

    def close(self) -> None:
        """Leave the arena, and free all memory."""
        self.arena.leave(self.evictor)
        self.finder.close()
        self.slots.close()

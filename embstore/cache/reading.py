"""Reads of a pool: rows gathered for a call, and copies of rows.

If the rows of a call fit into the cache, they are gathered from the slots. A larger call copies
whole rows, part by part, into a buffer of its own, and gathers from this buffer. Where the device's
work is queued, a call gathers before it is known whether all rows are resident (`look_up`,
`begin_pooled`). Usually all rows are resident, and the host waits only once. A **peek** leaves the
cache as it is: it reads resident rows from their slots and the other rows from storage. No row is
admitted or evicted, and no score changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.cache.finder import Finder
from embstore.cache.level_two import LevelTwo
from embstore.cache.residency import Residency
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Array, Batch, Counts, Slots
from embstore.errors import CapacityError
from embstore.layout import Layout
from embstore.storage.sparse import SparseRows
from embstore.storage.storage import PoolStorage
from embstore.storage.stored_rows import Located, StoredRows

Pooling = tuple[NDArray[np.int64], bool, NDArray[np.float32] | None]
"""The offsets of bags, whether bags are averaged, and weights. See `DeviceRows.gather_pooled`."""


@dataclass(eq=False)
class PoolReader:
    """The reads of one pool. Engine thread only."""

    device: Device
    storage: PoolStorage
    layout: Layout
    slots: PoolSlots
    finder: Finder
    residency: Residency
    level_two: LevelTwo | None = None

    def look_up(
        self,
        segments: Sequence[tuple[int, int, Keys]],
        outs: Sequence[Rows],
        accesses: int,
        *,
        admit: bool,
    ) -> bool:
        """Execute a lookup without a batch if all rows are resident, and return True; else do
        nothing and return False. `accesses` is the number of accesses that the keys stand for.
        Segments are as in `DeviceRows.look_up`.

        Where the host must wait to learn whether rows are missing, the method returns False at once
        if rows were missing in the last lookup.
        """
        scores, slots = self.residency.scores, self.slots
        if self.finder.lookups_miss and self.device.is_queued:
            return False
        before = scores.clock
        # If the lookup raises, rows may have the new clock; the next call can evict them.
        scores.clock += admit
        touched = self.device.rows.look_up(
            slots.memory,
            slots.index.arrays,
            segments,
            outs,
            self.layout.dim,
            scores.clock if admit else 0,
            scores.policy.counting,
            self.finder.moves,
        )
        if touched < 0:
            scores.clock = before
            self.finder.lookups_miss = True
            return False
        if admit:
            scores.count_touches(touched)
            self.residency.count_hits(touched, accesses)
        return True

    def gather(self, batch: Batch, outs: list[Rows], counts: Counts | None = None) -> None:
        """Write the weights of every position of `batch` to its segment's array in `outs`.

        counts : (n,), the accesses that each position stands for; only the counters of hits use it
        """
        rows, slots = self.resident_rows(batch, counts)
        self.device.rows.gather(rows, slots, batch, self.layout.dim, outs)

    def begin_pooled(
        self, batch: Batch, pooling: Pooling, out: Rows, *, admit: bool
    ) -> Callable[[], None] | None:
        """Queue the pooled gather of a batch that has one segment and is not synchronized yet.
        Return a function for `end`, or None if the gather was not queued.

        After synchronizing the batch, the caller passes the function to `end` if no row was
        missing. If a row was missing, the queued gather has done nothing.
        """
        slots = self.finder.looked_at(batch) if self.device.is_queued else None
        if slots is None:
            return None
        rows = self.slots.memory.rows
        end = self.device.rows.begin_gather_pooled(rows, slots, batch, *pooling, out)
        if end is not None and admit:
            scores = self.residency.scores
            scores.tick()
            scores.begin_touch(slots, batch)
        return end

    def end(self, end: Callable[[], None], batch: Batch, *, admit: bool) -> None:
        """Fill the output of a gather that `begin_pooled` queued, and count the gather if it admits
        rows."""
        end()
        if admit:
            self.residency.count_all_hit(batch, None)
            self.residency.scores.count_touches(len(batch.unique_keys))

    def gather_pooled(self, batch: Batch, pooling: Pooling, out: Rows) -> None:
        """Write the pooled weights of every bag of `batch`, which has one segment."""
        rows, slots = self.resident_rows(batch)
        self.device.rows.gather_pooled(rows, slots, batch, *pooling, out)

    def resident_rows(
        self, batch: Batch, counts: Counts | None = None, *, count: bool = True
    ) -> tuple[Array, Array]:
        """Return an array of rows, and for each unique key of a batch the position of its row in
        this array. The array is the pool's own, or an array of copies if the rows had to be made
        resident in parts. If no row can leave, for example because the disk is full, the rows are
        read without changing the cache (`peek_rows`).

        count : whether hits and misses are counted; `peek_rows` counts none
        """
        try:
            return self._made_resident(batch, counts, count=count)
        except CapacityError:
            return self.peek_rows(batch)

    def _made_resident(
        self, batch: Batch, counts: Counts | None, *, count: bool
    ) -> tuple[Array, Array]:
        keys, counted = batch.unique_keys, batch if count else None
        slots = self.residency.at_once(keys, counted, counts)
        if slots is not None:
            return self.slots.memory.rows, slots
        rows = self.device.memory.allocate_rows(len(keys), self.layout)
        for low, high in self.residency.parts(len(keys)):
            slots = self.residency.make_resident(keys[low:high], counted, counts, low)
            self.device.rows.gather_rows(self.slots.memory.rows, slots, rows, low)
        return rows, self.device.memory.upload(np.arange(len(keys)))

    def peek_rows(self, batch: Batch) -> tuple[Array, Array]:
        """Return what `resident_rows` returns, an array of rows and the keys' positions in it, but
        do not change the cache."""
        keys = batch.unique_keys
        slots, missing = self.finder.find(keys)
        if not missing:
            return self.slots.memory.rows, slots
        rows = self.device.memory.allocate_rows(len(keys), self.layout)
        self.device.rows.gather_rows(self.slots.memory.rows, slots, rows, 0)
        places, absent = self.device.keys.absent(keys, slots, missing)()
        if self.level_two is not None:
            found = self.level_two.find(absent)
            here = found >= 0
            self.level_two.copy(found[here], rows, places[here])
            places, absent = places[~here], absent[~here]
            missing = len(absent)
        step = self.slots.sizes.staging_rows
        for low in range(0, missing, step):
            part = slice(low, low + step)
            stored, is_stored = self._stored(absent[part])
            self.device.rows.scatter_rows(stored, rows, np.where(is_stored, places[part], -1))
            new = places[part][~is_stored]
            if len(new):
                self.residency.initialize(rows, new, absent[part][~is_stored])
        return rows, self.device.memory.upload(np.arange(len(keys)))

    def look(self, keys: Keys) -> "Looked":
        """Find, for unique row keys, the rows that were ever written. Rows in the cache are copied
        now; `Looked.read` reads the other rows later."""
        self.finder.finish_arriving()
        memory = self.device.memory
        slots = memory.download(self.finder.locate(memory.upload(keys))[0])
        resident, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        written = self.device.slots.read_slots(self.slots.memory, slots[resident])().dirty.copy()
        clean = np.flatnonzero(~written)
        written[clean] = self.storage.rows.has(keys[resident[clean]])
        in_cache = resident[written]
        copies = self.device.rows.read_rows(self.slots.memory.rows, slots[in_cache])
        if self.level_two is not None:
            places, below = self.level_two.dirty_of(keys[absent])
            in_cache = np.concatenate([in_cache, absent[places]])
            order = np.argsort(in_cache)
            in_cache, copies = in_cache[order], np.concatenate([copies, below])[order]
            absent = np.delete(absent, places)
        located = self.storage.rows.locate(keys[absent])
        self.storage.rows.count_read(located, self.layout.record_bytes)
        return Looked(self.storage.rows, len(keys), in_cache, copies, absent, located)

    def _stored(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        rows = np.empty((len(keys), self.layout.stride), self.layout.element)
        found = np.empty(len(keys), np.uint8)
        self.storage.rows.read(keys, rows, found)
        return rows, found != 0


@dataclass(frozen=True)
class Looked:
    """The written rows of some keys, as they were when `look` was called. Any thread."""

    stored: StoredRows | SparseRows
    count: int
    in_cache: Slots  # (m,) positions in the keys, ascending
    copies: Rows  # (m, stride)
    absent: Slots  # (k,) positions of the keys that are not in the cache
    located: Located  # where the absent rows are stored

    def ask(self) -> None:
        """Ask the system to read ahead the records that are on disk and not in memory."""
        self.stored.ask(self.located, self.copies)

    def read(self) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the written rows, and a (count,) bool array that is True for keys with a written
        row.

        Raises CorruptTableError if a record is damaged.
        """
        found = self.located.found != 0
        written = np.zeros(self.count, bool)
        written[self.in_cache], written[self.absent] = True, found
        if not found.any():
            return self.copies, written
        shape = self.copies.shape[1:]
        stored = np.empty((len(self.absent), *shape), self.copies.dtype)
        self.stored.collect(self.located, stored)
        rows = np.empty((int(np.count_nonzero(written)), *shape), self.copies.dtype)
        place = np.cumsum(written) - 1
        rows[place[self.in_cache]] = self.copies
        rows[place[self.absent[found]]] = stored[found]
        return rows, written

"""Residency: missing rows are read into slots, and their keys are inserted into the index.

`make_resident` changes where rows are, but never their content. So it can fail without a loss, for
example because of a full disk, a corrupt record, or lack of memory on the device. Victims leave
first (eviction.py). Then missing rows are read, one staging buffer after the other, into slots that
are not in the index yet. Then all keys are inserted at once. From this insertion on an error is
irreversible: it fails the store.

A call with more unique keys than slots is done in **parts** that fit, one after the other.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, KEY_BITS, Keys, Rows
from embstore.cache.counters import Counters
from embstore.cache.eviction import Evictor
from embstore.cache.exchange import Exchange
from embstore.cache.finder import Finder
from embstore.cache.levels import Ranks
from embstore.cache.pins import PoolPins
from embstore.cache.scores import Scores, Victims
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Answer, Array, Batch, Counts, Slots, TableParameters
from embstore.layout import Layout
from embstore.score import PENDING
from embstore.stages import Stages, now
from embstore.storage.storage import PoolStorage

_RANKED_SLOTS = 1 << 16


@dataclass(eq=False)
class Residency:
    """Makes rows of one pool resident. Engine thread only."""

    device: Device
    storage: PoolStorage
    layout: Layout
    parameters: TableParameters
    slots: PoolSlots
    pins: PoolPins
    finder: Finder
    scores: Scores
    ranks: Ranks
    evictor: Evictor
    counters: Counters
    stages: Stages
    exchange: Exchange | None = None
    """The exchange with level two; None if the cache has one level."""
    missed_rows: Counter[int] = field(default_factory=Counter)
    """The number of rows that lookups have brought in, by the number of the table (`RowKeys`)."""

    # Parts of a call

    def part_keys(self, count: int) -> int:
        """Add slabs for `count` unique keys; return how many of these keys can be resident at
        once."""
        while self.pins.unpinned_count < count and self.evictor.grow():
            pass
        if count and not self.pins.unpinned_count:
            self.pins.reclaim()
        return min(count, self.pins.unpinned_count)

    def parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of parts of `count` unique keys; each part can be resident at once."""
        size = self.part_keys(count)
        if count > size:
            self.counters.count_parts(-(-count // size))
        for low in range(0, count, max(size, 1)):
            yield low, min(low + size, count)

    # Rows of a call

    def make_resident(
        self, keys: Array, batch: Batch | None = None, counts: Counts | None = None, first: int = 0
    ) -> Array:
        """Make unique row keys that are known to fit resident, and return their slots, as `at_once`
        does. With a batch, the keys are the batch's unique keys from id `first` on."""
        slots = self.at_once(keys, batch, counts, first)
        assert slots is not None, "a call was given more rows than there are slots"
        return slots

    def at_once(
        self, keys: Array, batch: Batch | None = None, counts: Counts | None = None, first: int = 0
    ) -> Array | None:
        """Make unique row keys resident and touch them; return their slots, valid until the next
        call. If the keys do not fit at once (see `parts`), return None and do nothing.

        A lookup passes its `batch`, whose positions are counted as hits or misses, each once or as
        often as `counts` states. A write passes no batch: its rows were usually just looked up, so
        counting them again would distort the counters.

        Raises
        ------
        CapacityError : the log has no room for the victims.
        CorruptTableError : a stored record is damaged.
        """
        count, finder = len(keys), self.finder
        asked = None if self.exchange is None else self.exchange.asked(keys)
        slots, missing = finder.find(keys)
        if missing:
            moves = finder.moves
            if self.pins.unpinned_count < count and self.part_keys(count) < count:
                return None
            if finder.moves != moves:  # making room has moved rows
                slots, missing = finder.find(keys)
        self.stages.laps += "probe", now()
        score = self.scores.begin_call(slots, count - missing)
        if not missing and batch is not None and count == len(batch.unique_keys):
            self.count_all_hit(batch, counts)
            return slots
        hits: Answer[tuple[int, int]] | None = None
        if batch is not None:
            hits = None if asked is None else asked.hits
            if hits is None:
                hits = self.device.keys.count_accesses(batch, slots, first, first + count, counts)
        if missing and self.exchange is not None:
            missed = None if batch is None else self.missed_rows
            absent = self.exchange.bring(keys, slots, missing, score, missed, asked)
            assert absent is not None, "there is no ceiling"
            self.stages.laps += "evict", now()
            if len(absent.keys):
                fetched = self._fetch(absent.keys, None, score)
                self.device.keys.set_slots(slots, absent.places, fetched)
        elif missing:
            answer = self.device.keys.absent(keys, slots, missing)
            victims = self.evictor.ask_victims(missing)
            places, absent_keys = answer()
            if batch is not None:
                self._count_missed(absent_keys)
            fetched = self._fetch(absent_keys, victims, score)
            self.device.keys.set_slots(slots, places, fetched)
        if hits is not None:  # requested above, and known since the answer above
            accesses, of_them_hits = hits()
            self.counters.count_lookup(
                keys=count, missing=missing, accesses=accesses, hits=of_them_hits
            )
        if missing:
            finder.note(keys, slots, 0)
        return slots

    def _count_missed(self, keys: Keys) -> None:
        """Count by table the row keys that a lookup brings in. The keys of a table are
        consecutive."""
        numbers = (keys & ~self.parameters.key_mask) >> KEY_BITS
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(keys)]
        for low, high in pairwise(cuts):
            self.missed_rows[int(numbers[low])] += high - low

    def _fetch(self, keys: Keys, victims: Answer[Victims] | None, score: int) -> Slots:
        """Bring the rows of absent keys into the cache with this score, and return their slots.

        Victims leave first. Then the rows are read, one staging buffer after the other: while the
        device copies one buffer, the next is read.
        """
        step = self.slots.sizes.staging_rows
        if len(keys) > 2 * step:  # the disk works while victims leave
            self.storage.rows.prefetch(keys, self.layout.record_bytes)
        slots = self.take(len(keys), victims)
        try:
            self.stages.laps += "evict", now()
            for low in range(0, len(keys), step):
                self._fill(keys[low : low + step], slots[low : low + step])
        except BaseException:
            self.slots.put_back(len(slots))
            raise
        with self.storage.irreversible:
            self.finder.moves += 1
            self.slots.index.place(keys, slots, self.slots.memory, self.slots.count, score)
            self.scores.admit(slots, keys, touched=len(slots))
        self.stages.laps += "insert", now()
        return slots

    def take(self, count: int, victims: Answer[Victims] | None) -> Slots:
        """Evict victims if necessary, and return slots for `count` absent keys.

        victims : the answer of `ask_victims` for the same count

        Raises
        ------
        CapacityError : the log has no room for the rows that would have to leave.
        """
        if self.device.is_queued:
            self.device.memory.secure(count)
        return self.slots.take(count) if victims is None else self.evictor.take(count, victims)

    def _fill(self, keys: Keys, slots: Slots) -> None:
        """Write the rows of keys to free slots: the stored rows, or else the initial rows."""
        rows = self.device.memory.staging(len(keys), self.layout)
        found = np.empty(len(keys), np.uint8)
        self.storage.rows.read(keys, rows, found)
        self.stages.laps += "read", now()
        self.place_rows(keys, slots, rows, found)
        self.stages.laps += "insert", now()

    def count_all_hit(self, batch: Batch, counts: Counts | None) -> None:
        """Count the lookup of a batch whose rows were all resident."""
        count = batch.position_count if counts is None else int(counts.sum())
        self.count_hits(len(batch.unique_keys), count)

    def count_hits(self, keys: int, accesses: int) -> None:
        """Count a lookup whose rows were all resident. `keys` is the number of its unique keys."""
        self.counters.count_lookup(keys=keys, missing=0, accesses=accesses, hits=accesses)

    # Rows that come later

    def insert_pending(self, keys: Keys, slots: Slots) -> None:
        """Insert keys into the index as pending: the keys get `slots` now, and their rows arrive
        later."""
        with self.storage.irreversible:
            self.finder.moves += 1
            self.slots.index.place(keys, slots, self.slots.memory, self.slots.count, PENDING)
            self.scores.admit(slots, keys)

    def place_rows(self, keys: Keys, slots: Slots, rows: Rows, found: NDArray[np.uint8]) -> None:
        """Write the rows that storage returned to the slots of their keys. Where `found` is 0,
        storage has no row, and the initial row is written."""
        new = np.flatnonzero(found == 0)
        if len(new) < len(keys):
            stored = np.where(found, slots, -1) if len(new) else slots
            self.device.rows.scatter_rows(rows, self.slots.memory.rows, stored)
        if len(new):
            self.initialize(self.slots.memory.rows, slots[new], keys[new])
        self.counters.count_origins(found)

    def initialize(self, rows: Array, slots: Slots, keys: Keys) -> None:
        """Write the initial rows of keys to slots of `rows`."""
        self.device.rows.initialize(rows, slots, keys, self.parameters, self.layout)

    # Rows of tables

    def rank_again(self, low: int = 0, high: int | None = None) -> None:
        """Set the counts of the rows in slots [low, high), by default all slots, to the rows'
        levels.

        The work is done piece by piece, so that the keys of a piece stay in the processor's cache
        while they are sorted.
        """
        high = self.slots.count if high is None else high
        for begin in range(low, high, _RANKED_SLOTS):
            end = min(begin + _RANKED_SLOTS, high)
            keys = self.device.slots.read_range(self.slots.memory, begin, end).keys
            places = np.argsort(keys)  # by table
            places = places[keys[places] != EMPTY_KEY]
            self.scores.rank_again(begin + places, keys[places])
        self.scores.forget()

    def purge(self, table_id: int) -> None:
        """Remove the rows of a table, whether dirty or not. The caller ensures that no row is
        pinned."""
        self.missed_rows.pop(self.slots.row_keys.number(table_id), None)
        self.finder.finish_arriving()
        self.evictor.free_table(table_id)
        if self.exchange is not None:
            self.exchange.level_two.purge(table_id)

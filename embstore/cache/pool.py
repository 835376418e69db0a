"""A pool: the resident rows of all tables of one layout, and the batched verbs on them.

A **layout** is (dim, state, optimizer kind); tables that share it share slots, so a call over many
tables is one probe, one gather, one apply. A row is one record that moves as a whole: weights, then
state.

Each **slot** is free or resident. What is true between commands (`check_integrity`):

- a row key has at most one slot; the index has exactly the resident keys
- a slot's key is EMPTY_KEY exactly where it is free; each free slot is once in the free list
- a dirty slot's row is newer than what storage has; a free slot is clean
- a row's newest content is its slot's if it has one, else storage's, else its initializer's

`hold` makes rows resident: it changes where rows are and never what they are, so it may be refused
(a full disk, a corrupt record, no memory on the device) with nothing lost. Victims make room first,
the dirty ones logged, room for which is reserved before; then missing rows are read, one staging
buffer of them after the other, into slots that nobody knows yet; then all are placed and indexed at
once. Where slots change hands there is no way back: an error there fails the store.

A call with more unique keys than slots is done in **parts** that fit: its lookups gather through a
buffer of whole rows, its writes hold and apply part by part.

Rows of announced steps come ahead of their use (prefetch.py). A slot may then be **pinned**, which
makes it no victim, and **pending**: its key is in the index, its row still on its way. Whatever is
about to use a pending slot first finishes what is arriving. A call gets at most the slots that are
not pinned, part by part if it must.

The slots, and what is known of each, are in the device's memory, which comes and goes by slabs; the
list of the free ones is the host's, which alone gives and takes them. Slots keep their numbers,
whatever becomes of the budget. A device that has no memory for a slab of the budget is no reason to
refuse a call: rows leave instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, KEY_BITS, Keys, Rows
from embstore.cache.arena import Arena
from embstore.cache.counters import Counters
from embstore.cache.policy import Policy
from embstore.cache.ranks import Ranks
from embstore.cache.recent import RecentBatch
from embstore.cache.sizes import Layout
from embstore.cache.slabs import SlabSlots
from embstore.device.base import (
    Array,
    Batch,
    Counts,
    Device,
    Gradients,
    SlotContents,
    Slots,
    TableParameters,
)
from embstore.kernels.slots import PIN_SHIFT
from embstore.stages import Stages
from embstore.storage.storage import Storage

_VACATED_SLOTS_MAX = 1 << 16
_RANKED_SLOTS = 1 << 16
_UNPINNED_SHARE = 16
"""One slot in so many is never pinned, so that calls get on beside whoever pins."""


class Arriving(Protocol):
    """Rows on their way to slots that the index leads to already."""

    def finish(self) -> None:
        """Wait for them, and write them to their slots; or, where they cannot be read, give the
        slots free."""


@dataclass(frozen=True)
class Held:
    """Slots that hold the rows of a command, unless a row has left its slot since."""

    slots: Array
    moves: int


@dataclass(eq=False)
class Pool(SlabSlots):
    """The resident rows of one layout. Engine thread only."""

    device: Device
    storage: Storage
    arena: Arena
    layout: Layout
    policy_name: str
    stages: Stages
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.start()
        self.ranks = Ranks()
        self.policy = Policy(self.device, self.memory, self.policy_name, self.ranks.of)
        self.parameters = _no_parameters()
        self.tables: set[int] = set()
        self.recent = RecentBatch(self.device)
        self.arriving: list[Arriving] = []  # the oldest first
        self.pinned_count = 0
        self.unpinners: dict[str, Callable[[], None]] = {}
        """By who pins rows: what takes all these pins away."""
        self._slots: Array = self.device.allocate(0, np.int64)  # what probing writes to
        self._slots_of: object = None  # whose slots were found last, an array of keys or a batch
        self._slots_found: Array = self._slots
        self._slots_missing = 0
        self._slots_moves = 0
        self._dirty_max = 0  # at least the number of dirty slots: a row written twice counts twice
        self._moves = 0  # grows whenever a row comes to a slot or leaves it
        self._sums: Array = self.device.allocate(0, np.float32, width=self.layout.dim)
        self.fit_budget(self.arena.budget_bytes)
        self.arena.join(self)
        try:
            self._add_slab()
        except BaseException:
            self.arena.leave(self)
            raise

    # Room

    def vacate(self, low: int) -> None:
        """Evict the rows of all slots from `low` on, which are about to go.

        Piece by piece: arrays of many megabytes that come and go would stay with the allocator,
        when memory is to be given back.
        """
        self.finish_arriving()
        self.unpin_all()
        self.policy.forget()
        step = min(self._logged_rows_max, _VACATED_SLOTS_MAX)
        for high in range(self.slot_count, low, -step):
            begin = max(low, high - step)
            here = self.device.read_range(self.memory, begin, high)
            self.storage.reserve(int(np.count_nonzero(here.dirty)), self.layout.stride)
            self._evict(begin + np.flatnonzero(here.keys != EMPTY_KEY))

    def part_keys(self, count: int) -> int:
        """Return how many of `count` unique keys a part may hold; add the slabs that there are."""
        while self.free_to_use < count and self.grow():
            pass
        if count and not self.free_to_use:
            self.unpin_all()
        return min(count, self.free_to_use)

    def _fits(self, keys: Array) -> bool:
        """Say whether unique row keys can all be resident at once: they are, or there is room."""
        return not self._find(keys)[1] or self.part_keys(len(keys)) == len(keys)

    @property
    def pinned_max(self) -> int:
        """Slots that may be pinned, of those there are."""
        return self.slot_count - max(1, self.slot_count // _UNPINNED_SHARE)

    def pin(self, slots: Array | Slots) -> None:
        """Hold the rows of slots where they are, -1 passed over; pins add up."""
        self.pinned_count += self.device.pin(self.memory, slots)

    def unpin(self, slots: Array | Slots) -> None:
        """Take a pin from each of the slots, -1 passed over."""
        self.pinned_count -= self.device.unpin(self.memory, slots)

    def unpin_all(self) -> None:
        """Take every pin of the pool away, before slots go."""
        for unpin in list(self.unpinners.values()):
            unpin()

    @property
    def free_to_use(self) -> int:
        """Slots that a call may fill, none of which is pinned."""
        return self.slot_count - self.pinned_count

    # Residency

    def look(self, batch: Batch) -> None:
        """Have the device find the slots of a batch; `settle` tells what it found."""
        if batch.unique_keys is self._slots_of and self._slots_are_right:
            batch.found.missing = self._slots_missing
            return
        slots = self._slots_for(len(batch.unique_keys))
        self.device.probe(self.index.arrays, batch, slots)
        self._slots_of, self._slots_found = batch, slots

    def know(self, batch: Batch, slots: Array) -> None:
        """In place of `look`: the slots of all unique keys, which are pinned and have arrived."""
        self._slots_of, self._slots_found = batch, slots

    def settle(self, batch: Batch) -> None:
        """Wait for what the device finds out about a batch; see `Device.settle`."""
        self.device.settle(batch)
        if self._slots_of is batch:
            keys, missing = batch.unique_keys, batch.found.missing
            self._note_slots(keys, self._slots_found[: len(keys)], missing)
            if batch.found.outside < 0:
                batch.found.missing = self._arrived(keys)

    def hold(
        self, keys: Array, batch: Batch | None = None, counts: Counts | None = None, first: int = 0
    ) -> Array:
        """Make unique row keys resident and touch them; return their slots, until the next call.

        len(keys) <= slot_count. Contents do not change. A lookup gives its `batch`, in which the
        keys have the ids from `first` on, and by whose positions hits are counted, each once or as
        often as `counts` says; a write, whose rows were as a rule just looked up, would only
        flatter the counters.

        Raises
        ------
        CapacityError : no room in the log for the victims.
        CorruptTableError : a stored record is not what was written.
        """
        self.policy.tick()
        slots, missing = self._find(keys)
        self.stages.lap("probe")
        if batch is not None:
            self._count_hits(batch, slots, counts, missing, first)
        self.policy.touch(slots, len(keys) - missing, self.slot_count)
        if self.policy.has_lost_levels:
            self.policy.rank_again(slots, self.device.download(keys))
        if missing:
            self._slots_of = None
            places, absent = self.device.absent(keys, slots, missing)
            self.device.set_slots(slots, places, self._fetch(absent))
        self._note_slots(keys, slots, 0)
        return slots

    def _find(self, keys: Array) -> tuple[Array, int]:
        """Return the slots of unique row keys, -1 where absent, and how many are.

        None of them is pending, nor becomes so before the next call.
        """
        if keys is not self._slots_of or not self._slots_are_right:
            self._find_anew(keys)
        missing = self._arrived(keys)
        return self._slots_found, missing

    def _find_anew(self, keys: Array) -> None:
        slots = self._slots_for(len(keys))
        self._note_slots(keys, slots, self.device.find(self.index.arrays, keys, slots))

    def _arrived(self, keys: Array) -> int:
        """Have the rows of the slots found arrive, if any are pending; return how many are missing.

        Rows that cannot be read are missing then, for the call to read and to say so.
        """
        while self.arriving and self.device.count_pending(self.memory, self._slots_found):
            self.arriving[0].finish()
            if not self._slots_are_right:
                self._find_anew(keys)
        return self._slots_missing

    @property
    def moves(self) -> int:
        """Grows whenever a row comes to a slot or leaves it."""
        return self._moves

    def finish_arriving(self) -> None:
        """Wait for everything that is on its way."""
        while self.arriving:
            self.arriving[0].finish()

    @property
    def _slots_are_right(self) -> bool:
        """Whether no row has come or gone since they were found."""
        return self._slots_moves == self._moves

    def _note_slots(self, keys: Array, slots: Array, missing: int) -> None:
        self._slots_of, self._slots_found = keys, slots
        self._slots_missing, self._slots_moves = missing, self._moves

    def _slots_for(self, count: int) -> Array:
        """Return the array that probing writes to; what was found before is void."""
        self._slots_of = None
        if len(self._slots) < count:
            self._slots = self.device.allocate(count + count // 4, np.int64)
        return self._slots[:count]

    def _fetch(self, keys: Keys) -> Slots:
        """Bring absent rows in, and return their slots.

        Victims leave first. Then the rows come, one staging buffer after the other: while the
        device copies one in, the next is read.
        """
        step = self._sizes.staging_rows
        if len(keys) > step:
            self.storage.ask_for(keys, self.layout.stride)
        self.device.secure(len(keys))
        slots = self.take_slots(len(keys))
        self.stages.lap("evict")
        try:
            for low in range(0, len(keys), step):
                self._fill(keys[low : low + step], slots[low : low + step])
        except BaseException:
            self.put_back(slots)
            raise
        with self.storage.no_way_back():  # half of it would be a row in two places, or in none
            self._moves += 1
            self.device.place_keys(self.memory, slots, keys)
            self.index.insert(keys, slots, self.memory, self.slot_count)
            self.policy.touch(slots, len(slots), self.slot_count)
            self._admit(slots, keys)
        self.stages.lap("insert")
        return slots

    def _fill(self, keys: Keys, slots: Slots) -> None:
        """Write the stored or initial rows of keys to free slots."""
        rows = self.device.staging(len(keys), self.layout.stride)
        found = np.empty(len(keys), np.uint8)
        self.storage.read(keys, rows, found)
        self.stages.lap("read")
        self.place_rows(keys, slots, rows, found)
        self.stages.lap("insert")

    def place_rows(self, keys: Keys, slots: Slots, rows: Rows, found: NDArray[np.uint8]) -> None:
        """Write rows that were read to slots, and initial rows where none was found."""
        self.counters.count_origins(found)
        new = np.flatnonzero(found == 0)
        if len(new) < len(keys):
            stored = np.where(found, slots, -1) if len(new) else slots
            self.device.scatter_rows(rows, self.memory.rows, stored)
        if len(new):
            self._initialize(self.memory.rows, slots[new], keys[new])

    def await_rows(self, keys: Keys, slots: Slots) -> None:
        """Have the index lead to slots that were taken, whose rows come later: they are pending."""
        with self.storage.no_way_back():
            self._moves += 1
            self.device.place_pending(self.memory, slots, keys)
            self.index.insert(keys, slots, self.memory, self.slot_count)
            self._admit(slots, keys)

    def _admit(self, slots: Slots, keys: Keys) -> None:
        self.policy.admit(slots, keys, self.slot_count, is_full=not self._free_count)

    def rank_again(self, low: int = 0, high: int | None = None) -> None:
        """Give the rows in slots [low, high), in all unless told, their levels, where the policy
        goes by them and there are any.

        Piece by piece: the keys of a piece stay in a processor's cache while they are sorted.
        """
        if self.policy_name != "rank" or not self.ranks.tables:
            return
        high = self.slot_count if high is None else high
        for begin in range(low, high, _RANKED_SLOTS):
            end = min(begin + _RANKED_SLOTS, high)
            keys = self.device.read_range(self.memory, begin, end).keys
            places = np.argsort(keys)[np.count_nonzero(keys == EMPTY_KEY) :]  # by table
            self.policy.rank_again(begin + places, keys[places])
        self.policy.forget()

    def forget_rows(self, keys: Keys, slots: Slots) -> None:
        """Give pending slots free: their rows will not come."""
        self._free_slots(slots, keys)

    def put_back(self, slots: Slots) -> None:
        """Give slots back that were taken last, and hold nothing."""
        self._free_count += len(slots)  # they are still in their places of the free list

    def take_slots(self, count: int) -> Slots:
        """Return free slots; where there are too few, rows leave theirs.

        Raises
        ------
        CapacityError : no room in the log for the rows that would have to leave.
        """
        while self._free_count < count and self.grow():
            pass
        needed = count - self._free_count
        if needed > 0:
            # At worst every victim is dirty; the reservation stands before the first is logged.
            self.storage.reserve(min(needed, self._dirty_max), self.layout.stride)
            self._evict(self.policy.victims(needed, self.slot_count))
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count].astype(np.int64)

    def evict(self, count: int) -> int:
        """Have up to `count` rows leave their slots, ahead of need; return how many did.

        Raises
        ------
        CapacityError : no room in the log. Nothing has changed.
        """
        count = min(count, self.free_to_use - self._free_count)
        if count <= 0:
            return 0
        self.policy.tick()
        self.storage.reserve(min(count, self._dirty_max), self.layout.stride)
        self._evict(self.policy.victims(count, self.slot_count))
        return count

    def _evict(self, slots: Slots) -> None:
        """Free resident slots; dirty ones are logged first (room has been reserved)."""
        here = self.device.read_slots(self.memory, slots)
        count = int(np.count_nonzero(here.dirty))
        if count:
            self._log(here.keys[here.dirty], slots[here.dirty])
        self._free_slots(slots, here.keys)
        self._dirty_max -= count
        self.counters.count_evictions(len(slots), count)

    def _log(self, keys: Keys, slots: Slots) -> None:
        for piece, rows, places in self.device.row_pieces(self.memory.rows, slots):
            self.storage.append(keys[piece], rows, places)

    def _free_slots(self, slots: Slots, keys: Keys) -> None:
        with self.storage.no_way_back():
            self._moves += 1
            self.index.erase(keys)
            self.device.clear_slots(self.memory, slots)
            self._free[self._free_count : self._free_count + len(slots)] = slots
            self._free_count += len(slots)

    # Verbs

    def gather(self, batch: Batch, outs: list[Rows], counts: Counts | None = None) -> None:
        """Write the weights of every position of `batch` to its segment's array in `outs`.

        counts : (n,), accesses that each position stands for, in the counters and nowhere else
        """
        rows, slots = self.resident_rows(batch, counts)
        self.device.gather(rows, slots, batch, self.layout.dim, outs)

    def gather_pooled(
        self,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows,
    ) -> None:
        """Write the pooled weights of every bag of `batch`, which has one segment."""
        rows, slots = self.resident_rows(batch)
        self.device.gather_pooled(rows, slots, batch, offsets, mean, weights, out)

    def resident_rows(
        self, batch: Batch, counts: Counts | None = None, *, count: bool = True
    ) -> tuple[Array, Array]:
        """Return rows and slots by which a batch is answered: the pool's own, or copies of parts
        that were resident one after the other.

        count : whether the counters are told
        """
        keys, counted = batch.unique_keys, batch if count else None
        if self._fits(keys):
            slots = self.hold(keys, counted, counts)
            return self.memory.rows, slots
        rows = self.device.allocate_rows(len(keys), self.layout.stride)
        for low, high in self.parts(len(keys)):
            slots = self.hold(keys[low:high], counted, counts, low)
            self.device.gather_rows(self.memory.rows, slots, rows, low)
        return rows, self.device.upload(np.arange(len(keys)))

    def parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of `count` unique keys that can be held one after the other."""
        size = self.part_keys(count)
        if count > size:
            self.counters.count_parts(-(-count // size))
        for low in range(0, count, max(size, 1)):
            yield low, min(low + size, count)

    def sum_by_key(self, batch: Batch, gradients: list[Gradients], scale: np.float32) -> Array:
        """Return the scaled sums of a batch's gradients, (unique keys or more, dim), until the next
        call; see `Device.sum_by_key`."""
        count = len(batch.unique_keys)
        if len(self._sums) < count:
            self._sums = self._sums[:0]  # given back first
            self._sums = self.device.allocate(count + count // 4, np.float32, width=self.layout.dim)
        self.device.sum_by_key(batch, gradients, scale, self._sums[:count])
        return self._sums

    def prepare_write(self, keys: Array) -> Held | None:
        """Do everything of a write that can be refused, before the first row changes.

        What fits is made resident, and is returned. What does not is written in parts, for all
        victims of which room is reserved.

        Raises
        ------
        CapacityError, CorruptTableError : nothing has changed.
        """
        self.device.secure(len(keys))
        if self._fits(keys):
            return Held(self.hold(keys), self._moves)
        self.storage.reserve(len(keys), self.layout.stride)
        return None

    def write(
        self, keys: Array, held: Held | None, change: Callable[[Array, int, int], None]
    ) -> None:
        """Have `change(slots, low, high)` change the rows of keys[low:high], part by part.

        `held` is what `prepare_write` returned. A failure from here on leaves the store half
        written.
        """
        self._dirty_max += len(keys)
        with self.storage.no_way_back(), self.arena.fixed():
            if held is not None and held.moves == self._moves:
                change(held.slots, 0, len(keys))
                return
            for low, high in self.parts(len(keys)):
                change(self.hold(keys[low:high]), low, high)

    def peek_rows(self, batch: Batch) -> tuple[Array, Array]:
        """Return rows and slots by which a batch is answered, without a trace in the cache."""
        keys = batch.unique_keys
        slots, missing = self._find(keys)
        if not missing:
            return self.memory.rows, slots
        rows = self.device.allocate_rows(len(keys), self.layout.stride)
        self.device.gather_rows(self.memory.rows, slots, rows, 0)
        places, absent = self.device.absent(keys, slots, missing)
        step = self._sizes.staging_rows
        for low in range(0, missing, step):
            part = slice(low, low + step)
            stored, found = self._read(absent[part])
            self.device.scatter_rows(stored, rows, np.where(found, places[part], -1))
            new = places[part][~found]
            if len(new):
                self._initialize(rows, new, absent[part][~found])
        return rows, self.device.upload(np.arange(len(keys)))

    def peek_written(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        """Return a copy of those of `keys` that were ever written, and which they are."""
        self.finish_arriving()
        d_slots = self.device.allocate(len(keys), np.int64)
        self.device.find(self.index.arrays, self.device.upload(keys), d_slots)
        slots = self.device.download(d_slots)
        resident, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        written = np.zeros(len(keys), bool)
        written[resident] = self.device.read_slots(self.memory, slots[resident]).dirty
        clean = resident[~written[resident]]
        written[clean] = self.storage.has(keys[clean])
        if not len(absent):
            return self._copy_slots(slots[written]), written
        stored, found = self._read(keys[absent])
        written[absent] = found
        rows = np.empty((int(np.count_nonzero(written)), self.layout.stride), np.float32)
        place = np.cumsum(written) - 1
        held = resident[written[resident]]
        rows[place[held]] = self._copy_slots(slots[held])
        rows[place[absent[found]]] = stored[found]
        return rows, written

    def _copy_slots(self, slots: Slots) -> Rows:
        return self.device.read_rows(self.memory.rows, slots)

    def _read(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        rows = np.empty((len(keys), self.layout.stride), np.float32)
        found = np.empty(len(keys), np.uint8)
        self.storage.read(keys, rows, found)
        return rows, found != 0

    def _initialize(self, rows: Array, slots: Slots, keys: Keys) -> None:
        self.device.initialize(
            rows, slots, keys, self.parameters, self.layout.dim, self.layout.state_dim
        )

    # Dirty rows, tables

    def dirty_slots(self, table_id: int | None = None) -> tuple[Slots, Keys]:
        """Return the dirty slots, of one table or of all, and the row keys in them."""
        here = self.contents()
        slots = np.flatnonzero(here.dirty)
        keys = here.keys[slots]
        if table_id is None:
            return slots, keys
        of_table = keys >> KEY_BITS == table_id
        return slots[of_table], keys[of_table]

    @property
    def _logged_rows_max(self) -> int:
        """Rows that go to the log at once, so that its segments keep about their size."""
        return max(1, self.storage.segment_bytes // (8 * self.layout.stride))

    def flush(self, table_id: int | None = None) -> int:
        """Log the dirty rows, of one table or of all; return how many. They stay resident, clean.

        Raises
        ------
        CapacityError : the disk is full. Rows not yet logged stay dirty.
        """
        slots, keys = self.dirty_slots(table_id)
        self.storage.expect(len(slots))
        step = self._logged_rows_max
        for low in range(0, len(slots), step):
            part = slots[low : low + step]
            self.storage.reserve(len(part), self.layout.stride, bounded=False)
            self._log(keys[low : low + step], part)
            self.device.mark(self.memory, part, dirty=False)
        if table_id is None:
            self._dirty_max = 0
        else:
            self._dirty_max -= len(slots)
        return len(slots)

    def purge(self, table_id: int | None = None) -> None:
        """Forget the rows of a table, or of all, dirty or not. None is pinned."""
        self.finish_arriving()
        keys = self.slot_keys
        gone = keys != EMPTY_KEY if table_id is None else keys >> KEY_BITS == table_id
        slots = np.flatnonzero(gone)
        self._free_slots(slots, keys[slots])
        self.policy.forget()

    def add_table(self, table_id: int, parameters: TableParameters) -> None:
        """Take a table in; `parameters` has one entry, its own."""
        missing = table_id + 1 - len(self.parameters.seeds)
        for name, value in vars(parameters).items():
            array = getattr(self.parameters, name)
            if missing > 0:
                empty = np.zeros((missing, *array.shape[1:]), array.dtype)
                array = np.concatenate([array, empty])
                setattr(self.parameters, name, array)
            array[table_id] = value[0]
        self.tables.add(table_id)

    def remove_table(self, table_id: int) -> None:
        """Let a table go, its rows with it."""
        self.purge(table_id)
        self.ranks.tables.pop(table_id, None)
        self.tables.discard(table_id)

    def close(self) -> None:
        """Give all memory back."""
        self.finish_arriving()
        self.unpinners.clear()
        self._is_full = True
        self.device.drop_slots(self.memory, 0, self.slot_count)
        self._slots = self._slots_found = self._sums = None

    # Counting and checking

    def _count_hits(
        self, batch: Batch, slots: Array, counts: Counts | None, missing: int, first: int
    ) -> None:
        count = len(slots)
        if missing or count < len(batch.unique_keys):
            accesses, hits = self.device.count_accesses(batch, slots, first, first + count, counts)
        else:
            accesses = hits = batch.position_count if counts is None else int(counts.sum())
        self.counters.count_lookup(keys=count, missing=missing, accesses=accesses, hits=hits)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the module's docstring does not hold."""
        self.finish_arriving()
        here = self.contents()
        dirty_count = int(np.count_nonzero(here.dirty))
        faults = self._faults_of_slots(here) | {
            "more rows are dirty than are accounted for": dirty_count > self._dirty_max,
            "the arena's budget is exceeded": (
                self.arena.memory_bytes > self.arena.budget_bytes and self.slab_count > 1
            ),
        }
        for fault, found in faults.items():
            if found:
                raise AssertionError(f"integrity of pool {self.layout}: {fault}")

    def _faults_of_slots(self, here: SlotContents) -> dict[str, bool]:
        keys, free = here.keys, np.sort(self._free[: self._free_count])
        resident = np.flatnonzero(keys != EMPTY_KEY)
        d_slots = self.device.allocate(len(resident), np.int64)
        missing = self.device.find(self.index.arrays, self.device.upload(keys[resident]), d_slots)
        slots = self.device.download(d_slots)
        pinned = np.count_nonzero(here.scores[resident] >> PIN_SHIFT)
        ids = set(np.unique(keys[resident] >> KEY_BITS).tolist())
        return {
            "a key has two slots": len(np.unique(keys[resident])) != len(resident),
            "the index does not lead to a key's slot": bool(missing or (slots != resident).any()),
            "the free list is not the free slots": not np.array_equal(
                free, np.flatnonzero(keys == EMPTY_KEY)
            ),
            "a free slot is dirty": bool(here.dirty[free].any()),
            "the pinned slots are not those counted": bool(pinned != self.pinned_count),
            "a resident row's table is not of this pool": not ids <= self.tables,
        }


def _no_parameters() -> TableParameters:
    return TableParameters(
        scalars=np.zeros((0, 8), np.float32),
        initializer_kinds=np.zeros(0, np.int8),
        initializer_values=np.zeros((0, 2), np.float32),
        seeds=np.zeros(0, np.uint64),
        initial_state=np.zeros(0, np.float32),
    )

"""A pool: the resident rows of all tables of one layout, and the batched verbs on them.

A **layout** is (dim, state, optimizer kind); tables that share it share slots, so a call over many
tables is one probe, one gather, one apply. A row is one record that moves as a whole: weights, then
state.

Each **slot** is free or resident. What is true between commands (`check_integrity`):

- a row key has at most one slot; the index has exactly the resident keys
- `slot_keys[slot]` is EMPTY_KEY exactly for free slots, and each free slot stands once in the free
  list
- `dirty[slot]` says that the slot's row is newer than what storage has; a free slot is clean
- a row's newest content is its slot's if it has one, else storage's, else its initializer's

`hold` makes rows resident: it changes where rows are and never what they are, so it may fail at any
point (a full disk, a corrupt record) with nothing lost. Missing rows are read into staging first,
then victims make room (the dirty ones logged, room for which is reserved before), then the rows are
placed and indexed; staging bounds each round.

A call with more unique keys than slots is done in **parts** that fit: its lookups gather through a
buffer of whole rows, its writes hold and apply part by part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, KEY_BITS, Keys, Rows, row_stride
from embstore.cache.arena import Arena
from embstore.cache.index import SlotIndex
from embstore.cache.policy import Policy
from embstore.cache.recent import RecentBatch
from embstore.device.base import Batch, Device, Slots, TableParameters
from embstore.stages import Stages
from embstore.storage.storage import Storage

_STAGING_BYTES = 4 << 20
_STAGING_SHARE = 32
"""Of the budget, one part in so many at most is a pool's staging."""
_SLAB_SLOTS_MIN = 4
_METADATA_BYTES = 8 + 8 + 4 + 1  # slot_keys, scores, free list, dirty


@dataclass(frozen=True)
class Layout:
    """What tables must have in common to share a pool."""

    dim: int
    state_dim: int
    optimizer: str

    @property
    def stride(self) -> int:
        """fp32 of a row in the cache and on the disk."""
        return row_stride(self.dim + self.state_dim)


@dataclass(frozen=True)
class Sizes:
    """What a pool of some layout takes of an arena."""

    slot_bytes: int
    slab_slots: int
    staging_rows: int
    least_bytes: int  # with one slab

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab's rows and metadata."""
        return self.slab_slots * self.slot_bytes

    @classmethod
    def of(cls, layout: Layout, arena: Arena, device: Device) -> "Sizes":
        """Return the sizes of a pool that need not exist."""
        row_bytes = 4 * layout.stride
        slot_bytes = row_bytes + _METADATA_BYTES
        slab_slots = max(_SLAB_SLOTS_MIN, arena.slab_bytes // slot_bytes)
        staging_rows = max(
            1, min(_STAGING_BYTES, arena.budget_bytes // _STAGING_SHARE) // row_bytes
        )
        least = slab_slots * slot_bytes + device.index_bytes(slab_slots) + staging_rows * row_bytes
        return cls(slot_bytes, slab_slots, staging_rows, least)


@dataclass
class Counters:
    """What a pool did, since it was made. Both hit definitions: by unique key and by access."""

    accesses: int = 0
    access_hits: int = 0
    unique_keys: int = 0
    unique_hits: int = 0
    misses_log: int = 0
    misses_base: int = 0
    misses_initializer: int = 0
    evictions_clean: int = 0
    evictions_dirty: int = 0
    calls_in_parts: int = 0
    parts: int = 0


@dataclass(frozen=True)
class Held:
    """Slots that hold the rows of a command, unless a row has left its slot since."""

    slots: Slots
    moves: int


@dataclass(eq=False)
class Pool:
    """The resident rows of one layout. Engine thread only."""

    device: Device
    storage: Storage
    arena: Arena
    layout: Layout
    lfu: bool
    stages: Stages
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        stride = self.layout.stride
        sizes = Sizes.of(self.layout, self.arena, self.device)
        self.slot_bytes, self.slab_slots = sizes.slot_bytes, sizes.slab_slots
        self.slab_bytes = sizes.slab_bytes
        self.slab_count = 0
        self.index = SlotIndex(self.device)
        slot_and_index_bytes = self.slot_bytes + self.device.index_bytes(1 << 20) / (1 << 20)
        slabs_max = int(self.arena.budget_bytes / (self.slab_slots * slot_and_index_bytes)) + 1
        slots_max = slabs_max * self.slab_slots
        self.rows: Rows = self.device.allocate_rows(slots_max, stride)
        self.dirty = np.zeros(slots_max, np.uint8)
        self.policy = Policy(self.device, self.lfu, np.zeros(slots_max, np.int64))
        self.parameters = _no_parameters()
        self.tables: set[int] = set()
        self._slot_keys: Keys = np.empty(slots_max, np.int64)
        self._free = np.empty(slots_max, np.uint32)
        self._free_count = 0
        self._slots = np.empty(0, np.int64)
        self.recent = RecentBatch(self.device)
        self._held_keys: Keys | None = None
        self._held_moves = 0
        self._dirty_max = 0  # at least the number of dirty slots: a row written twice counts twice
        self._moves = 0  # grows whenever a row leaves its slot
        self._sums: Rows = np.empty((0, self.layout.dim), np.float32)
        self._staging: Rows = np.empty((sizes.staging_rows, stride), np.float32)
        self._found = np.empty(len(self._staging), np.uint8)
        self.arena.join(self)
        self._add_slab()

    # Capacity

    @property
    def slot_count(self) -> int:
        """Slots of the slabs that the pool has."""
        return self.slab_count * self.slab_slots

    @property
    def slot_keys(self) -> Keys:
        """The row key in each slot, EMPTY_KEY where it is free."""
        return self._slot_keys[: self.slot_count]

    @property
    def resident_count(self) -> int:
        """Slots in use."""
        return self.slot_count - self._free_count

    @property
    def memory_bytes(self) -> int:
        """Bytes of slabs, index and staging."""
        return self.slab_count * self.slab_bytes + self.index.memory_bytes + self._staging.nbytes

    @property
    def least_bytes(self) -> int:
        """Bytes with one slab."""
        return Sizes.of(self.layout, self.arena, self.device).least_bytes

    @property
    def grown_bytes(self) -> int:
        """Bytes with one slab more."""
        slots = self.slot_count + self.slab_slots
        slabs = (self.slab_count + 1) * self.slab_bytes
        return slabs + self.index.bytes_for(self._index_slots(slots)) + self._staging.nbytes

    def _index_slots(self, slots: int) -> int:
        """Return what the index is made for when it must serve `slots`.

        Twice that, so that it is rebuilt a few times only, but never more than there can be.
        """
        if slots <= self.index.capacity:
            return self.index.capacity
        return min(2 * slots, len(self._slot_keys)) if self.slab_count else slots

    def _add_slab(self) -> None:
        low, high = self.slot_count, self.slot_count + self.slab_slots
        index_slots = self._index_slots(high)
        self.slab_count += 1
        self._slot_keys[low:high] = EMPTY_KEY
        self.dirty[low:high] = 0
        added = np.arange(high - 1, low - 1, -1)
        self._free[self._free_count : self._free_count + len(added)] = added
        self._free_count += len(added)
        self.index.grow(index_slots, self.slot_keys)

    def release_slab(self) -> None:
        """Evict the rows of the last slab and give it back to the arena."""
        low, high = self.slot_count - self.slab_slots, self.slot_count
        slots = low + np.flatnonzero(self.slot_keys[low:] != EMPTY_KEY)
        self.storage.reserve(int(np.count_nonzero(self.dirty[slots])), self.layout.stride)
        self._evict(slots)
        free = self._free[: self._free_count]
        free = free[free < low]
        self._free[: len(free)] = free
        self._free_count = len(free)
        self.slab_count -= 1
        if self.slab_count == 1 or 2 * self.slot_count < self.index.capacity:
            self.index.shrink(self.slot_count, self.slot_keys)
        self.policy.forget()
        self.device.release_rows(self.rows, low, high)

    def part_keys(self, count: int) -> int:
        """Return how many of `count` unique keys a part may hold; add the slabs that there are."""
        while self.slot_count < count and self._grow():
            pass
        return min(count, self.slot_count)

    def _grow(self) -> bool:
        if self.slot_count + self.slab_slots > len(self._slot_keys) or not self.arena.grant(self):
            return False
        self._add_slab()
        return True

    # Residency

    def hold(self, keys: Keys, inverse: NDArray[np.int32] | None = None) -> Slots:
        """Make unique row keys resident and touch them; return their slots, until the next call.

        len(keys) <= slot_count. Contents do not change. A lookup gives its `inverse`, by which hits
        are counted; a write, whose rows were as a rule just looked up, would only flatter the
        counters.

        Raises
        ------
        CapacityError : no room in the log for the victims.
        CorruptTableError : a stored record is not what was written.
        """
        slots = self._scratch(len(keys))
        self.policy.tick()
        if keys is self._held_keys and self._moves == self._held_moves:
            missing = 0  # the last call's rows, where they were
        else:
            self._held_keys = None
            missing = self.index.probe(keys, slots)
        self.stages.lap("probe")
        if inverse is not None:
            self._count_hits(slots, inverse, missing)
        if not missing:
            self._held_keys, self._held_moves = keys, self._moves
            self.policy.touch(slots, self.slot_count)
            return slots
        self._held_keys = None
        absent = np.flatnonzero(slots < 0)
        self.policy.touch(slots[slots >= 0], self.slot_count)
        step = len(self._staging)
        if missing > step:
            self.storage.ask_for(keys[absent], self.layout.stride)
        for low in range(0, missing, step):
            part = absent[low : low + step]
            slots[part] = self._fetch(keys[part])
        self._held_keys, self._held_moves = keys, self._moves
        return slots

    def _fetch(self, keys: Keys) -> Slots:
        """Bring absent rows in, one staging buffer of them at most."""
        staging, found = self._staging[: len(keys)], self._found[: len(keys)]
        self.storage.read(keys, staging, found)
        self.stages.lap("read")
        slots = self._take_slots(len(keys))
        self.stages.lap("evict")
        stored = found != 0
        if stored.all():
            self.device.scatter_rows(staging, self.rows, slots)
        else:
            new = ~stored
            self.device.scatter_rows(staging[stored], self.rows, slots[stored])
            self._initialize(self.rows, slots[new], keys[new])
        self._slot_keys[slots] = keys
        self.index.insert(keys, slots, self.slot_keys)
        self.policy.scores[slots] = 0
        self.policy.touch(slots, self.slot_count)
        self._count_origins(found)
        self.stages.lap("insert")
        return slots

    def _take_slots(self, count: int) -> Slots:
        while self._free_count < count and self._grow():
            pass
        needed = count - self._free_count
        if needed > 0:
            # At worst every victim is dirty; the reservation stands before the first is logged.
            self.storage.reserve(min(needed, self._dirty_max), self.layout.stride)
            self._evict(self.policy.victims(needed, self.slot_keys))
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count].astype(np.int64)

    def _evict(self, slots: Slots) -> None:
        """Free resident slots; dirty ones are logged first (room has been reserved)."""
        keys = self._slot_keys[slots]
        dirty = self.dirty[slots] != 0
        count = int(np.count_nonzero(dirty))
        if count:
            self.storage.append(keys[dirty], self.rows, slots[dirty])
            self._dirty_max -= count
        self.counters.evictions_dirty += count
        self.counters.evictions_clean += len(slots) - count
        self._free_slots(slots, keys)

    def _free_slots(self, slots: Slots, keys: Keys) -> None:
        self._moves += 1
        self.index.erase(keys)
        self._slot_keys[slots] = EMPTY_KEY
        self.dirty[slots] = 0
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def _scratch(self, count: int) -> Slots:
        if len(self._slots) < count:
            self._slots = np.empty(count + count // 4, np.int64)
        return self._slots[:count]

    # Verbs

    def gather(self, batch: Batch, outs: list[Rows]) -> None:
        """Write the weights of every position of `batch` to its segment's array in `outs`."""
        count = len(batch.unique_keys)
        if self.part_keys(count) == count:
            rows, slots = self.rows, self.hold(batch.unique_keys, batch.inverse)
        else:
            rows, slots = self._rows_in_parts(batch)
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
        count = len(batch.unique_keys)
        if self.part_keys(count) == count:
            rows, slots = self.rows, self.hold(batch.unique_keys, batch.inverse)
        else:
            rows, slots = self._rows_in_parts(batch)
        self.device.gather_pooled(rows, slots, batch.inverse, offsets, mean, weights, out)

    def _rows_in_parts(self, batch: Batch) -> tuple[Rows, Slots]:
        keys = batch.unique_keys
        rows = np.empty((len(keys), self.layout.stride), np.float32)
        for low, high in self.parts(len(keys)):
            occurrences = batch.inverse[(batch.inverse >= low) & (batch.inverse < high)] - low
            slots = self.hold(keys[low:high], occurrences.astype(np.int32))
            self.device.gather_rows(self.rows, slots, rows[low:high])
        return rows, np.arange(len(keys))

    def parts(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of `count` unique keys that can be held one after the other."""
        size = self.part_keys(count)
        if count > size:
            self.counters.calls_in_parts += 1
            self.counters.parts += -(-count // size)
        for low in range(0, count, max(size, 1)):
            yield low, min(low + size, count)

    def sums(self, count: int) -> Rows:
        """Return scratch for the gradients of `count` unique keys, (count, dim)."""
        if len(self._sums) < count:
            self._sums = np.empty((count + count // 4, self.layout.dim), np.float32)
        return self._sums[:count]

    def prepare_write(self, keys: Keys) -> Held | None:
        """Do everything of a write that can be refused, before the first row changes.

        What fits is made resident, and is returned. What does not is written in parts, for all
        victims of which room is reserved.

        Raises
        ------
        CapacityError, CorruptTableError : nothing has changed.
        """
        if self.part_keys(len(keys)) == len(keys):
            return Held(self.hold(keys), self._moves)
        self.storage.reserve(len(keys), self.layout.stride)
        return None

    def write(
        self, keys: Keys, held: Held | None, change: Callable[[Slots, int, int], None]
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

    def peek_rows(self, keys: Keys) -> Rows:
        """Return a copy of unique rows, whole records.

        Leaves no trace in the cache or its scores.
        """
        slots = np.empty(len(keys), np.int64)
        missing = self.index.probe(keys, slots)
        if not missing:
            return self._copy_slots(slots)
        rows = np.empty((len(keys), self.layout.stride), np.float32)
        resident, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        rows[resident] = self._copy_slots(slots[resident])
        stored, found = self._read(keys[absent])
        new = np.flatnonzero(~found)
        self._initialize(stored, new, keys[absent][new])
        rows[absent] = stored
        return rows

    def peek_written(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        """Return a copy of those of `keys` that were ever written, and which they are."""
        slots = np.empty(len(keys), np.int64)
        self.index.probe(keys, slots)
        resident, absent = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        written = np.zeros(len(keys), bool)
        written[resident] = self.dirty[slots[resident]] != 0
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
        rows = np.empty((len(slots), self.layout.stride), np.float32)
        self.device.gather_rows(self.rows, slots, rows)
        return rows

    def _read(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        rows = np.empty((len(keys), self.layout.stride), np.float32)
        found = np.empty(len(keys), np.uint8)
        self.storage.read(keys, rows, found)
        return rows, found != 0

    def _initialize(self, rows: Rows, slots: Slots, keys: Keys) -> None:
        self.device.initialize(
            rows, slots, keys, self.parameters, self.layout.dim, self.layout.state_dim
        )

    # Dirty rows, tables

    def dirty_slots(self, table_id: int | None = None) -> Slots:
        """Return the dirty slots, of one table or of all."""
        slots = np.flatnonzero(self.dirty[: self.slot_count])
        if table_id is not None and len(slots):
            slots = slots[self._slot_keys[slots] >> KEY_BITS == table_id]
        return slots

    def flush(self, table_id: int | None = None) -> int:
        """Log the dirty rows, of one table or of all; return how many. They stay resident, clean.

        Raises
        ------
        CapacityError : the disk is full. Rows not yet logged stay dirty.
        """
        slots = self.dirty_slots(table_id)
        self.storage.expect(len(slots))
        step = max(1, self.storage.segment_bytes // (8 * self.layout.stride))
        for low in range(0, len(slots), step):
            part = slots[low : low + step]
            self.storage.reserve(len(part), self.layout.stride, bounded=False)
            self.storage.append(self._slot_keys[part], self.rows, part)
            self.dirty[part] = 0
        self._dirty_max = int(np.count_nonzero(self.dirty[: self.slot_count]))
        return len(slots)

    def purge(self, table_id: int | None = None) -> None:
        """Forget the rows of a table, or of all, dirty or not."""
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
        self.tables.discard(table_id)

    def close(self) -> None:
        """Give all memory back."""
        self.device.release_rows(self.rows, 0, self.slot_count)

    # Counting and checking

    def _count_hits(self, slots: Slots, inverse: NDArray[np.int32], missing: int) -> None:
        accesses = len(inverse)
        self.counters.unique_keys += len(slots)
        self.counters.unique_hits += len(slots) - missing
        self.counters.accesses += accesses
        self.counters.access_hits += (
            self.device.count_accesses(inverse, slots) if missing else accesses
        )

    def _count_origins(self, found: NDArray[np.uint8]) -> None:
        origins = np.bincount(found, minlength=3)
        self.counters.misses_initializer += int(origins[0])
        self.counters.misses_log += int(origins[1])
        self.counters.misses_base += int(origins[2])

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the module's docstring does not hold."""
        keys = self.slot_keys
        resident = np.flatnonzero(keys != EMPTY_KEY)
        free = np.sort(self._free[: self._free_count])
        slots = np.empty(len(resident), np.int64)
        missing = self.index.probe(keys[resident], slots)
        faults = {
            "a key has two slots": len(np.unique(keys[resident])) != len(resident),
            "the index does not lead to a key's slot": missing or (slots != resident).any(),
            "the free list is not the free slots": not np.array_equal(
                free, np.flatnonzero(keys == EMPTY_KEY)
            ),
            "a free slot is dirty": self.dirty[free].any(),
            "more rows are dirty than are accounted for": (
                np.count_nonzero(self.dirty[: self.slot_count]) > self._dirty_max
            ),
            "a resident row's table is not of this pool": not (
                set(np.unique(keys[resident] >> KEY_BITS).tolist()) <= self.tables
            ),
            "the arena's budget is exceeded": (
                self.arena.memory_bytes > self.arena.budget_bytes and self.slab_count > 1
            ),
        }
        for fault, found in faults.items():
            if found:
                raise AssertionError(f"integrity of pool {self.layout}: {fault}")


def _no_parameters() -> TableParameters:
    return TableParameters(
        scalars=np.zeros((0, 8), np.float32),
        initializer_kinds=np.zeros(0, np.int8),
        initializer_values=np.zeros((0, 2), np.float32),
        seeds=np.zeros(0, np.uint64),
        initial_state=np.zeros(0, np.float32),
    )

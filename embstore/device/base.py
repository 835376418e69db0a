"""The Device protocol: memory and batched kernels. A device has no notion of tables or policies.

The cache is written against this protocol alone, and every device gives the same bits
(contract.md). A device is four objects, each with one kind of work: `memory`, `keys`, `rows` and
`slots`.

A call works on a **batch**: the row keys that a command names, of all tables of one pool, table
after table. A command names each table once, and the table's id is part of the row key. Therefore
the unique keys of one table are consecutive, and so are its positions. A **segment** is one table's
share of the unique keys and of the positions.

    keys       t0 t0 t0 t0 | t1 t1 t1      positions, in call order
    inverse     0  1  0  2 |  3  3  4      position -> id
    unique      k0 k1 k2   | k3 k4         id -> row key, in order of first occurrence
    slots       s0 s1 s2   | s3 s4         id -> slot of the cache, -1 where absent

**Where arrays are.** An `Array` is in the device's memory: a NumPy array on the CPU, an address
range on a GPU that the host cannot read. The cache only slices an `Array`, takes its length and
passes it on. Arrays with other annotations are on the host. Arrays of a caller of the store (keys,
gradients, outputs) may also be in the device's memory, if `adopt` accepts them. Host arrays are
C-contiguous; arrays that are only read may be read-only.

**When results are known.** A GPU's work is queued, and the host waits once per call. Therefore
`unique`, `probe` and `sum_by_key` return nothing that a kernel computes. `synchronize` waits;
afterwards the batch has the number of unique keys, the number of absent keys, and the errors of the
call. Before `synchronize` the arrays of a batch have one element per position, and a key outside
its table does no harm in a kernel. Work that is queued before `synchronize` (`begin_gather_pooled`,
`touch` of a batch) is done only if no key is missing and there is no error. Every other method that
returns a number or a host array waits for this result.

Some methods return an **answer**: a function that is called once and returns a kernel's result. The
function waits, unless the host has already waited since the method was called. So a caller that
calls several such methods before it calls the first answer waits only once.

Where work is not queued (see `is_queued`), the result of `unique` is in scratch memory, and is
valid until the next call of `unique`. Once scratch memory is large enough, no method allocates
memory per key. The caller has checked the arguments; a wrong argument is a bug. One thread at a
time calls a device; the device may use threads of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.device.memory import DeviceMemory
from embstore.device.values import (
    Answer,
    Array,
    Batch,
    Counts,
    Gradients,
    IndexArrays,
    Missing,
    PoolUpdate,
    Selected,
    SlotContents,
    SlotMemory,
    Slots,
    TableParameters,
)
from embstore.layout import Layout


class DeviceKeys(Protocol):
    """Keys of a call, the index, and the results of kernels about a batch."""

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> Batch:
        """Encode and de-duplicate the keys of a call.

        segments : (number, rows, keys (n,) int64) of each table, in call order. Each table occurs
            once. `number` is the table's number in the pool (`RowKeys.number`); rows and keys are
            unsigned
        """

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> Batch:
        """Encode the keys of a call as `unique` does, if the keys are known to be unique and in
        range.

        The batch is valid as long as there is a reference to it. Calls do not use this batch
        itself: `again` returns a batch for each call. The `inverse` may be read-only.
        """

    def again(self, batch: Batch) -> Batch:
        """Return a batch of the same keys for another call. The new batch has no findings yet.

        `batch` must be synchronized, and have no key outside its table.
        """

    def group(
        self,
        index: IndexArrays,
        memory: SlotMemory,
        slot_count: int,
        segments: Sequence[tuple[int, int, Keys]],
        moves: int,
    ) -> tuple[Batch, Array] | None:
        """Queue the search for the slots of a call, and group its positions by slot.

        Return a batch for summing gradients, and the slots of its unique keys, in ascending order
        of slots. The batch and these slots are void if a key turns out to be missing. Here a key
        also counts as missing if it is outside its table, or if its row is pending. Return None if
        grouping gains nothing on this device.

        moves : as in `DeviceRows.look_up`
        """

    def probe(self, index: IndexArrays, batch: Batch, slots: Array) -> None:
        """Write the slot of each unique key, or -1, into `slots`, which is as long as the call's
        keys."""

    def synchronize(self, *batches: Batch) -> None:
        """Wait for the results of batches. Afterwards `found` and the length of `unique_keys` of
        each batch are valid."""

    def find(self, index: IndexArrays, keys: Array, slots: Array) -> int:
        """Write the slot of each key, or -1, into `slots`; return the number of absent keys.
        Waits."""

    def absent(self, keys: Array, slots: Array, missing: int) -> Answer[tuple[Slots, Keys]]:
        """Return the positions of -1 in `slots`, ascending, and the keys at these positions.
        `missing` is their number."""

    def set_slots(self, slots: Array, places: Array | Slots, values: Array | Slots) -> None:
        """slots[places[i]] = values[i]."""

    def count_accesses(
        self, batch: Batch, slots: Array, low: int, high: int, counts: Counts | None
    ) -> Answer[tuple[int, int]]:
        """Return the number of accesses to the ids [low, high), and how many of these accesses hit.
        `slots` are the slots of these ids.

        counts : (n,), the accesses that each position stands for; None: 1 each
        """

    def insert(self, index: IndexArrays, keys: Array | Keys, slots: Array | Slots) -> Answer[bool]:
        """Add absent, unique keys. The returned answer gives False if the stash is full: in this
        case the index is unusable, and the caller builds a larger index."""

    def insert_slots(self, index: IndexArrays, memory: SlotMemory, slot_count: int) -> bool:
        """Add the keys of all slots to an empty index; return what the answer of `insert` gives."""

    def erase(self, index: IndexArrays, keys: Array | Keys) -> None:
        """Remove unique keys that are in the index."""


class DeviceRows(Protocol):
    """Work on rows: reading, summing and updating them for a call, and copying them for the cache.

    `rows` arguments come from a SlotMemory, or from `allocate_rows`.
    """

    look_up_keys_max: int
    """The most keys of a lookup without a batch; with more keys, making them unique first is
    faster."""

    def gather(
        self, rows: Array, slots: Array, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        """outs[segment][i] = rows[slots[inverse[position]], :dim] for every position of a segment.
        All keys must have slots. (For a slot of -1, an output in the device's memory is unchanged.)
        """

    def look_up(
        self,
        memory: SlotMemory,
        index: IndexArrays,
        segments: Sequence[tuple[int, int, Keys]],
        outs: Sequence[Rows],
        dim: int,
        clock: int,
        counting: int,
        moves: int,
    ) -> int:
        """Execute a lookup of at most `look_up_keys_max` keys without a batch: the row of each
        position is searched separately. Return the number of slots that were touched.

        Do nothing and return -1 if a key is outside its table or has no slot, or if a row is
        pending. Segments are as in `DeviceKeys.unique`, but two segments may be of one table. With
        a clock of 0 no score changes.

        moves : the number of times that rows have entered or left slots
        """

    def gather_pooled(
        self,
        rows: Array,
        slots: Array,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows,
    ) -> None:
        """out[bag] = the sum (or mean) over the bag's rows (contract.md rule 8); dim is
        out.shape[1]. The batch has one segment, and all keys of the batch have slots.

        weights : (offsets[-1],)
        """

    def begin_gather_pooled(
        self,
        rows: Array,
        slots: Array,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows,
    ) -> Callable[[], None] | None:
        """Queue `gather_pooled` before the batch is synchronized.

        The work is done if no key of the batch turns out to be outside its table or without a slot.
        In this case the caller calls the returned function, which fills an output on the host.
        Return None if this device gains nothing by queueing the work.
        """

    def sum_by_key(
        self, batch: Batch, gradients: Sequence[Gradients], scale: np.float32, sums: Array
    ) -> None:
        """sums[id] = scale * (the sum over the id's occurrences, contract.md rule 2).

        The same pass finds sums that contract.md rule 9 may refuse; after `synchronize`,
        `batch.found.large` is the lowest id of such a sum.

        sums : (positions, dim) or more; rows after the unique keys are unchanged
        """

    def begin_update(self, parts: Sequence[PoolUpdate]) -> Answer[bool] | None:
        """Queue the sums of an update's gradients, and the update of the rows. The rows are updated
        only if all parts are valid: every key has a slot and is inside its table, and no sum is
        large.

        Return an answer: whether the rows are updated. Calling the answer synchronizes each batch;
        the answer is known before the update is done. Return None if this device gains nothing by
        queueing the update.

        Gradients in the device's memory are read until the work is done; gradients on the host are
        read until the answer returns.
        """

    def apply(
        self,
        kind: str,
        memory: SlotMemory,
        slots: Array,
        keys: Array,
        sums: Array,
        parameters: TableParameters,
    ) -> None:
        """Apply optimizer `kind` (contract.md rule 4) to the row of slots[i] with g = sums[i], and
        mark the slot dirty.

        slots, keys : (m,), unique, without -1; the table ids in the keys select the scalars
        sums : (m, dim)
        """

    def scatter_rows(self, source: Rows, rows: Array, slots: Slots) -> None:
        """rows[slots[i]] = source[i]: whole rows, with canonical NaNs. Slots are unique, except for
        -1, which is skipped. A `source` that came from `staging` must not be used afterwards."""

    def initialize(
        self, rows: Array, slots: Slots, keys: Keys, parameters: TableParameters, layout: Layout
    ) -> None:
        """Write the initial row (contract.md rule 10) of keys[i] to rows[slots[i]], zero-padded."""

    def gather_rows(self, rows: Array, slots: Array, out: Array, first: int) -> None:
        """out[first + i] = rows[slots[i]]: whole rows; `out` is from `allocate_rows`; -1 is
        skipped."""

    def copy_slots(self, rows: Array, slots: Slots, targets: Array, places: Slots) -> None:
        """targets[places[i]] = rows[slots[i]]: whole rows. `rows` and `targets` are the rows of two
        pools, of two levels of a pool, or of `allocate_rows`. `slots` and `places` are (n,),
        without -1; `places` are unique."""

    def read_rows(self, rows: Array, slots: Array) -> Rows:
        """Return a copy of the rows of slots; no slot is -1. Waits."""

    def row_pieces(self, rows: Array, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        """Yield the rows of slots piece by piece. Each piece is a triple: a slice of `slots`, an
        array of host rows, and the positions in this array of the rows of the slice's slots.

        The host rows are valid until the next piece is requested.
        """


class DeviceSlots(Protocol):
    """The metadata of slots (keys, scores, pins and flags), and the choice of victims.

    `embstore.score` describes the fields of a score.
    """

    def place_keys(self, memory: SlotMemory, slots: Slots, keys: Keys, score: int) -> None:
        """Write row keys to free slots, which become clean. `score` is PENDING if the rows arrive
        later."""

    def arrive(self, memory: SlotMemory, slots: Slots) -> None:
        """Mark the rows of slots as arrived: the scores are no longer PENDING; nothing else
        changes.

        slots : (n,) unique, without -1
        """

    def count_pending(self, memory: SlotMemory, slots: Array) -> int:
        """Return how many of the slots are PENDING; slots of -1 are skipped. Waits."""

    def clear_slots(self, memory: SlotMemory, slots: Slots) -> None:
        """Free slots."""

    def mark(self, memory: SlotMemory, slots: Array | Slots, *, dirty: bool) -> None:
        """Set whether slots are dirty."""

    def read_slots(
        self, memory: SlotMemory, slots: Slots, *, with_rows: bool = False
    ) -> Answer[SlotContents]:
        """Return the contents of slots.

        with_rows : whether rows are included, on devices where copying rows costs less than a wait
        """

    def read_range(self, memory: SlotMemory, low: int, high: int) -> SlotContents:
        """Return the contents of slots [low, high). Waits."""

    def touch(
        self,
        memory: SlotMemory,
        slots: Array | Slots,
        clock: int,
        counting: int,
        batch: Batch | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Set the scores of a call's slots to count << 40 | clock, where clock < 2**40; -1 is
        skipped.

        batch : where work is queued, the batch for which the slots are being probed. The slots are
            scored only if no key of the batch turns out to be missing or outside its table. With
            `always`, the slots that are found are scored even if keys are missing
        counting : the new count: COUNT_NONE sets 0, COUNT_UP adds one (saturating), COUNT_KEEP
            keeps the old count

        Bits 52..63 do not change. A FORESEEN slot is no longer FORESEEN, so that a slot that the
        running call has touched is never a victim of this call.
        """

    def set_counts(
        self, memory: SlotMemory, slots: Array | Slots, counts: NDArray[np.int64]
    ) -> None:
        """Set the counts of slots; nothing else changes.

        slots : (n,) unique except for -1, which is skipped
        counts : (n,) of 0 to COUNT_MAX
        """

    def age_scores(self, memory: SlotMemory, slot_count: int) -> None:
        """Halve every count (rounded down); nothing else changes."""

    def pin(self, memory: SlotMemory, slots: Array | Slots) -> Answer[int]:
        """Add a pin to each of the slots, which are unique except for -1; -1 is skipped. The
        returned answer gives how many of the slots had no pin before. A slot has at most PINS_MAX
        pins."""

    def unpin(self, memory: SlotMemory, slots: Array | Slots) -> Answer[int]:
        """Remove a pin from each of the slots, which are unique except for -1; -1 is skipped. Each
        slot must have a pin. The returned answer gives how many of the slots have no pin now."""

    def foresee(
        self, memory: SlotMemory, slots: Array | Slots, ranks: NDArray[np.int64], clock: int
    ) -> None:
        """Make slots FORESEEN, each with a rank; their counts do not change.

        slots : (n,) unique except for -1, which is skipped
        ranks : (n,) below 2**40. With NO_USE a FORESEEN slot is no longer FORESEEN, and gets the
            clock; with UNCHANGED a slot does not change
        """

    def select_victims(
        self,
        memory: SlotMemory,
        slot_count: int,
        clock: int,
        count: int,
        first: int = 0,
        *,
        with_rows: bool = False,
    ) -> Answer[Selected]:
        """Return up to `count` resident slots of lowest score that the call of this clock has not
        touched (score & (2**40 - 1) != clock).

        Among slots of equal score the lowest slots are taken. Slots that are pinned or PENDING are
        never taken: a victim has 0 <= score < PIN_ONE.

        first, with_rows : the contents of the `first` slots of lowest score are read too, as
            `read_slots` does with `with_rows`
        """


class DeviceLevels(Protocol):
    """A device's work between two levels of the cache (cache/exchange.py)."""

    @property
    def below(self) -> "Device":
        """The device of level two: this GPU, with rows in pinned host memory, which its kernels
        access."""

    def look(
        self,
        keys: Array,
        slots: Array,
        batch: Batch | None,
        index: IndexArrays,
        below: SlotMemory,
        memory: SlotMemory,
        slot_count: int,
        clock: int,
        free: int,
        parameters: TableParameters,
    ) -> Answer[Missing]:
        """Search level two, whose index and slots are `index` and `below`, for the keys with -1 in
        `slots`. Also select victims in level one, as `DeviceSlots.select_victims` does: one victim
        for each of these keys beyond the first `free`.

        batch : the batch of the keys if it is not synchronized yet; None: all `keys` are valid
        parameters : parameters of the tables; missing keys are counted by table
        """

    def exchange(
        self,
        memory: SlotMemory,
        below_memory: SlotMemory,
        slots: Array,
        below: Array,
        keys: Array,
        first_up: int,
        first_down: int,
        score: int,
        below_score: int,
    ) -> Array:
        """Exchange rows and metadata between `slots` and `below`, which are slots of level one and
        of level two, in pairs. In pairs from `first_up` on, the rows of `keys` come up. In pairs
        from `first_down` on, rows move down, or leave the cache if `below` is -1. Return the keys
        that were in `slots`."""


class Device(Protocol):
    """A device, as the cache uses it."""

    name: str
    is_queued: bool
    """Whether work is queued, so that results are known only after a wait."""

    memory: DeviceMemory
    keys: DeviceKeys
    rows: DeviceRows
    slots: DeviceSlots

    @property
    def levels(self) -> DeviceLevels | None:
        """The device's work between two levels; None if the cache has one level, on the host."""

    @property
    def is_lost(self) -> bool:
        """Whether the device has failed, so that the content of its memory must not be trusted."""

    def finish(self) -> None:
        """Wait for all queued work. Afterwards the device uses no array of a caller."""

    def facts(self) -> dict[str, Any]:
        """Return facts about the device for operators: model, memory, versions."""

    def warm_up(self) -> None:
        """Compile every kernel, so that no later call waits for a compiler."""

    def close(self) -> None:
        """End the device's threads and free its scratch memory. Allocated arrays stay valid."""

"""The Device protocol: memory and batched kernels. A device knows no tables and no policies.

The cache is written against this protocol alone, and every device gives the same bits
(contract.md). A device is four objects, each with one kind of work: `memory`, `keys`, `rows` and
`slots`.

A call works on a **batch**: the row keys of all tables of one pool that a command names, table
after table. A table is named once per command, and its id is part of the row key. Therefore the
unique keys of one table are consecutive, as its positions are. A **segment** is one table's share
of both.

    keys       t0 t0 t0 t0 | t1 t1 t1      positions, in call order
    inverse     0  1  0  2 |  3  3  4      position -> id
    unique      k0 k1 k2   | k3 k4         id -> row key, in order of first occurrence
    slots       s0 s1 s2   | s3 s4         id -> slot of the cache, -1 where absent

**Where arrays are.** An `Array` is in the device's memory: a NumPy array on the CPU, an address
range on a GPU that the host cannot read. The cache slices it, takes its length and passes it on.
Arrays with other annotations are on the host. Arrays of a caller of the store (keys, gradients,
outputs) may also be in the device's memory, where `adopt` accepts them. Host arrays are
C-contiguous; arrays that are only read may be read-only.

**When results are known.** A GPU's work is queued, and the host waits once per call. Therefore
`unique`, `probe` and `sum_by_key` return nothing that a kernel computes. `synchronize` waits, and
after it the batch has the number of unique keys, the number of absent keys, and the errors of the
call. Until then a batch is as long as its positions, and a key outside its table does no harm in a
kernel. Work queued before (`begin_gather_pooled`, `touch` of a batch) is done only if no key is
missing and there is no error. Every other method that returns a number or a host array waits for
it.

Some methods return an **answer**: a function that is called once and returns a kernel's result. It
waits unless there was a wait since the question. A caller that asks several questions before it
calls the first answer waits only once.

Where work is not queued (see `is_queued`), the result of `unique` is in scratch memory, and valid
until the next `unique`. No method allocates memory per key once scratch memory has grown. Arguments
have been checked by the caller; a wrong argument is a bug. One thread calls a device at a time; the
device may use threads of its own.
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

        segments : (number, rows, keys (n,) int64) of each table in call order, each table once.
            `number` is the table's number in the pool (`RowKeys.number`); rows and keys are
            unsigned
        """

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> Batch:
        """Encode the keys of a call as `unique` does, if they are known to be unique and in range.

        The batch is valid as long as there is a reference to it. It is used through `again`. Its
        `inverse` may be read-only.
        """

    def again(self, batch: Batch) -> Batch:
        """Return a batch of the same keys for another call, with no results yet.

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

        Return a batch for summing gradients, and the slot of each of its unique keys, in the order
        of slots. Both are void if a key turns out to be missing. Here a key is also missing if it
        is outside its table, or if its row is pending. Return None where grouping gains nothing.

        moves : as in `DeviceRows.look_up`
        """

    def probe(self, index: IndexArrays, batch: Batch, slots: Array) -> None:
        """Write the slot of each unique key, or -1, into `slots`, which is as long as the call."""

    def synchronize(self, *batches: Batch) -> None:
        """Wait; then `found` and the length of `unique_keys` are valid in each of the batches."""

    def find(self, index: IndexArrays, keys: Array, slots: Array) -> int:
        """Write each key's slot, or -1, into `slots`; return how many are absent. Waits."""

    def absent(self, keys: Array, slots: Array, missing: int) -> Answer[tuple[Slots, Keys]]:
        """Return the positions of the `missing` -1 in `slots`, ascending, and the keys there."""

    def set_slots(self, slots: Array, places: Array | Slots, values: Array | Slots) -> None:
        """slots[places[i]] = values[i]."""

    def count_accesses(
        self, batch: Batch, slots: Array, low: int, high: int, counts: Counts | None
    ) -> Answer[tuple[int, int]]:
        """Return the accesses to ids [low, high), whose slots are `slots`, and how many hit.

        counts : (n,), accesses that each position stands for; None: 1 each
        """

    def insert(self, index: IndexArrays, keys: Array | Keys, slots: Array | Slots) -> Answer[bool]:
        """Add absent, unique keys. The answer is False if the stash is full: the index is unusable
        then, and the caller builds a larger one."""

    def insert_slots(self, index: IndexArrays, memory: SlotMemory, slot_count: int) -> bool:
        """Add the keys of all slots to an empty index; the result is as in `insert`."""

    def erase(self, index: IndexArrays, keys: Array | Keys) -> None:
        """Remove unique keys that are in the index."""


class DeviceRows(Protocol):
    """Rows: read, summed and updated for a call; copied to and from the host for the cache.

    `rows` arguments come from a SlotMemory, or from `allocate_rows`.
    """

    look_up_keys_max: int
    """The most keys of a lookup without a batch; with more it is faster to make keys unique."""

    def gather(
        self, rows: Array, slots: Array, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        """outs[segment][i] = rows[slots[inverse[position]], :dim] for every position of a segment.

        All keys must have slots. (Where a slot is -1, an output in the device's memory is
        unchanged.)
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
        """Execute a lookup of at most `look_up_keys_max` keys without a batch: each position
        searches its row. Return the number of slots that were touched.

        Return -1, with nothing done, if a key is outside its table or has no slot, or a row is
        pending. Segments are as in `DeviceKeys.unique`, but two may be of one table. With a clock
        of 0 no score changes.

        moves : how many times rows have entered or left slots
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
        """out[bag] = the sum (or mean) over the bag's rows, contract.md rule 8; dim is
        out.shape[1]. The batch has one segment, and all its keys have slots.

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

        The work is done if the batch turns out to have no key outside its table and no key without
        a slot. In that case the caller calls the returned function, which fills an output on the
        host. Return None where this device gains nothing by queueing it.
        """

    def sum_by_key(
        self, batch: Batch, gradients: Sequence[Gradients], scale: np.float32, sums: Array
    ) -> None:
        """sums[id] = scale * (the sum over the id's occurrences, contract.md rule 2).

        The same pass finds sums that rule 9 may refuse: `batch.found.large`, after `synchronize`.

        sums : (positions, dim) or more; rows after the unique keys are unchanged
        """

    def begin_update(self, parts: Sequence[PoolUpdate]) -> Answer[bool] | None:
        """Queue the sums of an update's gradients, and the update of the rows. The rows are updated
        only if all parts are valid: no key without a slot or outside its table, and no large sum.

        Return an answer: whether the rows are updated. It is known before the update is done, and
        each batch is synchronized then. Return None where this device gains nothing by queueing it.

        Gradients in the device's memory are read until the work is done, gradients on the host
        until the answer.
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

        slots, keys : (m,), unique, without -1; the keys' table ids select the scalars
        sums : (m, dim)
        """

    def scatter_rows(self, source: Rows, rows: Array, slots: Slots) -> None:
        """rows[slots[i]] = source[i], whole rows, with NaNs made canonical. Slots are unique,
        except for -1, which is skipped. A `source` that came from `staging` must not be used
        afterwards."""

    def initialize(
        self, rows: Array, slots: Slots, keys: Keys, parameters: TableParameters, layout: Layout
    ) -> None:
        """Write the initial row (contract.md rule 10) of keys[i] to rows[slots[i]], zero-padded."""

    def gather_rows(self, rows: Array, slots: Array, out: Array, first: int) -> None:
        """out[first + i] = rows[slots[i]], whole rows of `allocate_rows`; -1 is skipped."""

    def copy_slots(self, rows: Array, slots: Slots, targets: Array, places: Slots) -> None:
        """targets[places[i]] = rows[slots[i]], whole rows, from slots of one pool to slots of
        another pool, one of which may be level two. Both are (n,), without -1; `places` are
        unique."""

    def read_rows(self, rows: Array, slots: Array) -> Rows:
        """Return a copy of the rows of slots, without -1. Waits."""

    def row_pieces(self, rows: Array, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        """Yield the rows of slots in pieces: a slice of `slots`, host rows, positions in these.

        The host rows are valid until the next piece is requested.
        """


class DeviceSlots(Protocol):
    """The metadata of slots: keys, scores, pins and flags; and the choice of victims.

    `embstore.score` describes the fields of a score.
    """

    def place_keys(self, memory: SlotMemory, slots: Slots, keys: Keys, score: int) -> None:
        """Write row keys to free slots, clean. The score is PENDING where rows arrive later."""

    def arrive(self, memory: SlotMemory, slots: Slots) -> None:
        """Mark the rows of slots as arrived: the score is no longer PENDING; nothing else changes.

        slots : (n,) unique, without -1
        """

    def count_pending(self, memory: SlotMemory, slots: Array) -> int:
        """Return how many of the slots are PENDING; -1 is skipped. Waits."""

    def clear_slots(self, memory: SlotMemory, slots: Slots) -> None:
        """Free slots."""

    def mark(self, memory: SlotMemory, slots: Array | Slots, *, dirty: bool) -> None:
        """Set whether slots are dirty."""

    def read_slots(
        self, memory: SlotMemory, slots: Slots, *, with_rows: bool = False
    ) -> Answer[SlotContents]:
        """Return the contents of slots.

        with_rows : whether rows are included, on devices where copying them costs less than a wait
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
        """Set the scores of a call's slots to count << 40 | clock, clock < 2**40; -1 is skipped.

        batch : the batch for which the slots are being probed, where work is queued. The slots are
            scored only if no key of it turns out to be missing or outside its table; with `always`,
            the slots that are found are scored in any case
        counting : the new count: COUNT_NONE sets 0, COUNT_UP adds one (saturating), COUNT_KEEP
            keeps it

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
        """Add a pin to each of the slots, which are unique except for -1, which is skipped. The
        answer is how many of them had no pin before. A slot has at most PINS_MAX pins."""

    def unpin(self, memory: SlotMemory, slots: Array | Slots) -> Answer[int]:
        """Remove a pin from each of the slots, which are unique except for -1, which is skipped.
        Each must have a pin. The answer is how many of them have no pin now."""

    def foresee(
        self, memory: SlotMemory, slots: Array | Slots, ranks: NDArray[np.int64], clock: int
    ) -> None:
        """Make slots FORESEEN, with a rank; the count does not change.

        slots : (n,) unique except for -1, which is skipped
        ranks : (n,) below 2**40. With NO_USE a slot is no longer FORESEEN, and gets the clock if it
            was; with UNCHANGED a slot does not change
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
        """Return up to `count` resident slots of lowest score that this clock has not touched
        (score & (2**40 - 1) != clock).

        Among slots of equal score the lowest slots are taken. Slots that are pinned or PENDING are
        never taken: 0 <= score < PIN_ONE.

        first, with_rows : the contents of the `first` slots of lowest score are read, as in
            `read_slots`
        """


class DeviceLevels(Protocol):
    """A device's work between two levels of the cache (cache/exchange.py)."""

    @property
    def below(self) -> "Device":
        """The device of level two: this device, whose kernels access rows in pinned memory."""

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
        """For the keys with -1 in `slots`, search level two, whose index and slots are `index` and
        `below`. Also select victims in level one, as `DeviceSlots.select_victims` does: one for
        each of these keys beyond the first `free`.

        batch : the batch of the keys, which is not synchronized yet; None: all `keys` are valid
        parameters : parameters of the tables, by which missing keys are counted
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
        """Exchange rows between `slots` and the slots `below`, with their metadata. Pairs from
        `first_up` on have rows that come up, for `keys`. Pairs from `first_down` on have rows that
        go down, or that leave the cache where `below` is -1. Return the keys that were in
        `slots`."""


class Device(Protocol):
    """The interface of a device for the cache."""

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
        """Whether the device has failed: the content of its memory must not be trusted."""

    def finish(self) -> None:
        """Wait for all queued work, after which the device uses no array of a caller."""

    def facts(self) -> dict[str, Any]:
        """Return facts about the device for operators: model, memory, versions."""

    def warm_up(self) -> None:
        """Compile every kernel, so that no later call waits for a compiler."""

    def close(self) -> None:
        """End the device's threads and free its scratch memory. Allocated arrays stay valid."""

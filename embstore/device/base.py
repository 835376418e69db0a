"""The Device protocol: memory and batched kernels. A device knows no tables and no policies.

The cache is written against this protocol alone, and every device gives the same bits
(contract.md). A device is four objects, each with one kind of work: `memory`, `keys`, `rows` and
`slots`.

A call works on a **batch**: the row keys of all tables of one pool that a command names, table
after table. Since a table is named once per command and its id is part of the row key, the unique
keys of one table are consecutive as well; a **segment** is one table's share of both.

    keys       t0 t0 t0 t0 | t1 t1 t1      positions, in call order
    inverse     0  1  0  2 |  3  3  4      position -> id
    unique      k0 k1 k2   | k3 k4         id -> row key, in order of first occurrence
    slots       s0 s1 s2   | s3 s4         id -> slot of the cache, -1 where absent

**Where arrays are.** An `Array` is in the device's memory: a NumPy array on the CPU, an address
range on a GPU that the host cannot read. The cache slices it, takes its length and passes it on.
Arrays with other annotations are on the host; arrays of a caller of the store (keys, gradients,
outputs) may also be in the device's memory, where `adopt` accepts them. Host arrays are
C-contiguous; those that are only read may be read-only.

**When results are known.** A GPU's work is queued, and the host waits once a call. Therefore
`unique`, `probe` and `sum_by_key` return nothing that a kernel computes: `synchronize` waits, and
then the batch has the number of unique keys, of absent keys, and the errors of the call. Until then
a batch is as long as its positions, and a key outside its table does no harm in a kernel. Work
queued before (`begin_gather_pooled`, `touch` of a batch) is done only if nothing is missing or
wrong. Every other method that returns a number or a host array waits for it.

Some methods return an **answer**, a function: called, once, it returns a kernel's result, and waits
if no wait has come since. A caller that asks several questions before the first answer waits once.

Where work is not queued (`is_queued`), the result of `unique` is in scratch memory, and valid until
the next `unique`. Nothing here allocates per key once scratch memory has grown. Arguments have been
checked by the caller; a wrong one is a bug. One thread calls a device at a time; the device may use
threads of its own.
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
    """Keys of a call, the index, and the findings of kernels about a batch."""

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> Batch:
        """Encode and de-duplicate the keys of a call.

        segments : (number, rows, keys (n,) int64), tables in call order, each once: the number is
            the table's in the pool (`RowKeys.number`), rows and keys are unsigned
        """

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> Batch:
        """Encode the keys of a call as `unique`, which the caller knows to be unique and in range.

        The batch is valid as long as it is referred to, and is used by way of `again`. Its
        `inverse` may be read-only.
        """

    def again(self, batch: Batch) -> Batch:
        """Return a batch of the same keys for another call, which finds out about them anew.

        `batch` is synchronized, and has no key outside its table.
        """

    def group(
        self,
        index: IndexArrays,
        memory: SlotMemory,
        slot_count: int,
        segments: Sequence[tuple[int, int, Keys]],
        moves: int,
    ) -> tuple[Batch, Array] | None:
        """Queue the search for the slots of a call, and group its positions by them.

        Returns a batch to sum gradients of, and the slot of each of its unique keys, which are in
        the order of slots; both are void if a key turns out to be missing, which here it also is
        outside its table or while its row is pending. None: nothing is gained by it here.

        moves : as of `DeviceRows.look_up`
        """

    def probe(self, index: IndexArrays, batch: Batch, slots: Array) -> None:
        """Write the slot of each unique key, or -1, into `slots`, which is as long as the call."""

    def synchronize(self, *batches: Batch) -> None:
        """Wait; then `found` and the length of `unique_keys` are right in each of the batches."""

    def find(self, index: IndexArrays, keys: Array, slots: Array) -> int:
        """Write each key's slot, or -1, into `slots`; return how many are absent. Waits."""

    def absent(self, keys: Array, slots: Array, missing: int) -> Answer[tuple[Slots, Keys]]:
        """Return the positions of the `missing` -1 in `slots`, ascending, and the keys there."""

    def set_slots(self, slots: Array, places: Array | Slots, values: Array | Slots) -> None:
        """slots[places[i]] = values[i]."""

    def count_accesses(
        self, batch: Batch, slots: Array, low: int, high: int, counts: Counts | None
    ) -> Answer[tuple[int, int]]:
        """Return the accesses of ids [low, high), whose slots are `slots`, and how many hit.

        counts : (n,), accesses that each position stands for; None: 1 each
        """

    def insert(self, index: IndexArrays, keys: Array | Keys, slots: Array | Slots) -> Answer[bool]:
        """Add absent, unique keys. False: the stash is full and the index unusable; build a larger
        one."""

    def insert_slots(self, index: IndexArrays, memory: SlotMemory, slot_count: int) -> bool:
        """Add the keys of all slots, as `insert`, to an empty index."""

    def erase(self, index: IndexArrays, keys: Array | Keys) -> None:
        """Remove present, unique keys."""


class DeviceRows(Protocol):
    """Rows: read, summed and updated for a call; copied to and from the host for the cache.

    `rows` come from a SlotMemory, or from `allocate_rows`.
    """

    look_up_keys_max: int
    """Keys of a lookup without a batch, at most. With more, it pays to make keys unique."""

    def gather(
        self, rows: Array, slots: Array, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        """outs[segment][i] = rows[slots[inverse[position]], :dim] for every position of a segment.

        All are present. (Where a slot is -1, an output in the device's memory is left as it is.)
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
        """Do a lookup of `look_up_keys_max` keys or fewer without a batch: each position looks for
        its row. Return how many slots it touched.

        -1, and nothing is done: a key is outside its table or has no slot, or a row is pending.
        Segments are as of `DeviceKeys.unique`, but two may be of one table; with a clock of 0 no
        score changes.

        moves : how often a row has come to a slot or left one
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
        out.shape[1]. The batch has one segment, all its rows are present.

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
        """Queue it before the batch is synchronized.

        It is done if the batch then has no key outside its table and none without a slot: call the
        returned function, which fills an output of the host. None: this device gains nothing by it.
        """

    def sum_by_key(
        self, batch: Batch, gradients: Sequence[Gradients], scale: np.float32, sums: Array
    ) -> None:
        """sums[id] = scale * (the sum over the id's occurrences, contract.md rule 2).

        The same pass finds results that rule 9 may refuse: `batch.found.large`, after
        `synchronize`.

        sums : (positions, dim) or more; rows beyond the unique keys are left as they are
        """

    def begin_update(self, parts: Sequence[PoolUpdate]) -> Answer[bool] | None:
        """Queue the sums of an update's gradients, and the update of the rows, which is done if
        nothing is wrong with any part: no key without a slot or outside its table, no large sum.

        Returns whether the rows are changed, once that is known, which is before they are. Each
        batch is synchronized then. None: this device gains nothing by it.

        Gradients in the device's memory are read until the work is done; a caller's until the
        answer.
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
        """Apply optimizer `kind` (contract.md rule 4) to the row of slots[i] with g = sums[i]; the
        slot is dirty then.

        slots, keys : (m,) present and unique; the keys' table ids select the scalars
        sums : (m, dim)
        """

    def scatter_rows(self, source: Rows, rows: Array, slots: Slots) -> None:
        """rows[slots[i]] = source[i], whole rows, NaNs made canonical; slots are unique but for
        -1, which is skipped. A `source` from `staging` belongs to the device again."""

    def initialize(
        self, rows: Array, slots: Slots, keys: Keys, parameters: TableParameters, layout: Layout
    ) -> None:
        """Write the initial row (contract.md rule 10) of keys[i] to rows[slots[i]], padding
        zeroed."""

    def gather_rows(self, rows: Array, slots: Array, out: Array, first: int) -> None:
        """out[first + i] = rows[slots[i]], whole rows of `allocate_rows`; -1 is skipped."""

    def copy_slots(self, rows: Array, slots: Slots, targets: Array, places: Slots) -> None:
        """targets[places[i]] = rows[slots[i]], whole rows: from one pool's slots to another's, of
        which one may be of level two. Both are (n,), without -1, `places` unique."""

    def read_rows(self, rows: Array, slots: Array) -> Rows:
        """Return a copy of the rows of slots, all present. Waits."""

    def row_pieces(self, rows: Array, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        """Yield the rows of slots piece by piece: which of `slots`, host rows, places in them.

        The host rows are valid until the next piece is requested.
        """


class DeviceSlots(Protocol):
    """The metadata of slots: keys, scores, pins and flags; and the choice of victims.

    The fields of a score are described in `embstore.score`.
    """

    def place_keys(self, memory: SlotMemory, slots: Slots, keys: Keys, score: int) -> None:
        """Give free slots to row keys, clean; the score is PENDING where rows come later, or 0."""

    def arrive(self, memory: SlotMemory, slots: Slots) -> None:
        """Mark the rows of slots as present: no longer PENDING, all else stays.

        slots : (n,) unique, none -1
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

        with_rows : their rows too, where a wait costs more than to copy them
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
        """Score the slots of a call, -1 skipped: count << 40 | clock. The clock is below 2**40.

        batch : where work is queued: the slots are those that were probed for it; they are scored
            if, once it is synchronized, none is missing and no key outside its table; `always`:
            those that are there, in any case
        counting : the new count: COUNT_NONE 0, COUNT_UP one more (saturating),
            COUNT_KEEP what it was

        Bits 52..63 stay. A FORESEEN slot loses that mark: a slot that the running call has touched
        is never its victim.
        """

    def set_counts(
        self, memory: SlotMemory, slots: Array | Slots, counts: NDArray[np.int64]
    ) -> None:
        """Set the counts of slots; all else stays.

        slots : (n,) unique but for -1, which is skipped
        counts : (n,) of 0 to COUNT_MAX
        """

    def age_scores(self, memory: SlotMemory, slot_count: int) -> None:
        """Halve every count (rounded down); all else stays."""

    def pin(self, memory: SlotMemory, slots: Array | Slots) -> Answer[int]:
        """Add a pin to each of the slots, unique but for -1, which is skipped; answer how many of
        them had none before. A slot may have PINS_MAX."""

    def unpin(self, memory: SlotMemory, slots: Array | Slots) -> Answer[int]:
        """Remove a pin from each of the slots, unique but for -1, which is skipped; answer how many
        of them have none now. All had one."""

    def foresee(
        self, memory: SlotMemory, slots: Array | Slots, ranks: NDArray[np.int64], clock: int
    ) -> None:
        """Make slots FORESEEN, with a rank; the count stays.

        slots : (n,) unique but for -1, which is skipped
        ranks : (n,) below 2**40; NO_USE: the slot is FORESEEN no longer, and if it was, it has the
            clock; UNCHANGED: it stays as it is
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
        """Return the up to `count` resident slots of lowest score that this clock has not touched
        (score & (2**40 - 1) != clock).

        Of equal scores the lowest slots are taken. A slot that is pinned or PENDING is none of
        them: 0 <= score < PIN_ONE.

        first, with_rows : the `first` of lowest score are read as by `read_slots`
        """


class DeviceLevels(Protocol):
    """A device's work between two levels of the cache (cache/exchange.py)."""

    @property
    def below(self) -> "Device":
        """The device of level two: this one, whose kernels read and write rows in pinned memory."""

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
        """Look in level two, of which `index` and `below` are, for the keys that have -1 in
        `slots`, and in level one for victims, as `DeviceSlots.select_victims`, for as many of them
        as are more than `free`.

        batch : whose keys they are, before it is synchronized; None: all of `keys`
        parameters : by whose tables the keys are counted
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
        """Exchange rows between slots and those `below`, with all that is known of them: pairs from
        `first_up` on have rows that come up, for `keys`; those from `first_down` on have rows that
        go down, or leave the cache where `below` is -1. Returns the keys that were in `slots`."""


class Device(Protocol):
    """The interface of a device for the cache."""

    name: str
    is_queued: bool
    """Results are known later: when they have been waited for."""

    memory: DeviceMemory
    keys: DeviceKeys
    rows: DeviceRows
    slots: DeviceSlots

    @property
    def levels(self) -> DeviceLevels | None:
        """Its work between two levels; None: the cache has one level, in the host's memory."""

    @property
    def is_lost(self) -> bool:
        """Whether the device has failed: nothing in its memory may be trusted."""

    def finish(self) -> None:
        """Wait for all that is queued: when it is done, nothing refers to a caller's arrays."""

    def facts(self) -> dict[str, Any]:
        """Return facts of the device for operators: model, memory, versions."""

    def warm_up(self) -> None:
        """Compile every kernel, so that no later call waits for a compiler."""

    def close(self) -> None:
        """End the device's threads and free its scratch memory. Arrays that were allocated stay
        valid."""

"""The Device protocol: memory and a set of batched kernels. It knows no tables, no policies.

The cache is written against this protocol alone, so that it reads the same on every device, and
every device gives the same bits (contract.md). A call works on a **batch**: the row keys of all
tables of one pool that a command names, table after table. Since a table is named once per command
and its id is part of the row key, the unique keys of one table are consecutive as well; a
**segment** is one table's share of both.

    keys       t0 t0 t0 t0 | t1 t1 t1      positions, in call order
    inverse     0  1  0  2 |  3  3  4      position -> id
    unique      k0 k1 k2   | k3 k4         id -> row key, in order of first occurrence
    slots       s0 s1 s2   | s3 s4         id -> slot of the cache, -1 where absent

All arrays are C-contiguous; those that are only read may be read-only.

Arrays that a device returns live in its own scratch memory: they hold until the next call of the
same method. Nothing here allocates per key once the scratch has grown. Arguments have been checked
by the caller; a wrong one is a bug of ours. One thread calls a device at a time; it may use threads
of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows

Slots = NDArray[np.int64]
Flags = NDArray[np.uint8]


@dataclass(frozen=True)
class Batch:
    """Unique row keys of a call and the way back; `bounds` cut positions, `id_bounds` ids."""

    unique_keys: Keys  # (u,)
    inverse: NDArray[np.int32]  # (n,)
    bounds: NDArray[np.int64]  # (segments + 1,)
    id_bounds: NDArray[np.int64]  # (segments + 1,)


@dataclass(frozen=True)
class Groups:
    """The positions of each id in call order: positions[starts[id]:starts[id + 1]]."""

    starts: NDArray[np.int64]  # (u + 1,)
    positions: NDArray[np.int32]  # (n,)


@dataclass(frozen=True)
class Gradients:
    """Gradients of one segment: occurrence i (counted from the segment's start) receives

    rows[i]                                    where `source` is None (one gradient per key), else
    rows[source[i]]                            with `coefficients` None        (bags, sum)
    rows[source[i]] / coefficients[i]          with `divide`                   (bags, mean)
    coefficients[i] * rows[source[i]]          otherwise                       (bags, weights)
    each rounded once to fp32 (contract.md, rule 8).
    """

    rows: Rows  # (n or bags, dim)
    source: NDArray[np.int32] | None = None
    coefficients: NDArray[np.float32] | None = None
    divide: bool = False


@dataclass
class TableParameters:
    """Small arrays indexed by table id (row key >> 40), for all tables of one pool.

    scalars : (tables, 8) float32, `embstore.arithmetic.update_scalars` of this command
    initializer_kinds : (tables,) int8, 0 constant, 1 uniform, 2 normal
    initializer_values : (tables, 2) float32: (value, 0), (low, high - low), (mean, std)
    seeds : (tables,) uint64
    initial_state : (tables,) float32, what every state element starts as
    """

    scalars: NDArray[np.float32]
    initializer_kinds: NDArray[np.int8]
    initializer_values: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    initial_state: NDArray[np.float32]


@dataclass
class IndexArrays:
    """A two-choice bucket index, key -> slot: `bucket_keys` (buckets, width), EMPTY_KEY where free.

    A key stands in one of its two buckets, or, when both were full at its insertion, in the stash,
    whose first `stash_count[0]` places are in use. A key stands at most once.
    """

    bucket_keys: NDArray[np.int64]  # (buckets, width)
    bucket_slots: NDArray[np.uint32]  # (buckets, width)
    stash_keys: NDArray[np.int64]
    stash_slots: NDArray[np.uint32]
    stash_count: NDArray[np.int64]  # (1,)


class Device(Protocol):
    """What the cache needs of a device. `rows` is always a (slots, stride) float32 array of row
    records: weights [0, dim), state [dim, dim + state_dim), padding to `stride`, a multiple of 4
    elements."""

    name: str

    def allocate_rows(self, slot_count_max: int, stride: int) -> Rows:
        """Reserve address space for rows; memory is taken when a row is first written."""

    def lengthen_rows(self, rows: Rows, slot_count: int, slot_count_max: int) -> Rows:
        """Reserve address space for more rows, and move the first `slot_count` of `rows` there.

        `rows` is given up. No more than a piece of it is in memory twice at any time.
        """

    def release_rows(self, rows: Rows, low: int, high: int) -> None:
        """Give the memory of slots [low, high) back (whole pages inside them); their content is
        lost."""

    def allocate_index(self, slot_count: int) -> IndexArrays:
        """Make an empty index with room for `slot_count` keys at a load of at most two thirds."""

    def index_bytes(self, slot_count: int) -> int:
        """Return the bytes that `allocate_index(slot_count)` takes."""

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> tuple[Batch, int]:
        """Encode and de-duplicate the keys of a call.

        segments : (table_id, rows, keys (n,) int64), tables in call order, each once. Returns the
        batch and -1, or an unusable batch and the position of the first key outside [0, rows).
        """

    def group(self, batch: Batch) -> Groups:
        """Sort the positions of a batch by id, stably."""

    def probe(self, index: IndexArrays, keys: Keys, slots: Slots) -> int:
        """Write each key's slot, or -1, into `slots`; return how many are absent."""

    def insert(self, index: IndexArrays, keys: Keys, slots: Slots) -> bool:
        """Add absent, unique keys. False: the stash is full, the index is unusable, build a larger
        one."""

    def erase(self, index: IndexArrays, keys: Keys) -> None:
        """Remove present, unique keys."""

    def gather(
        self, rows: Rows, slots: Slots, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        """outs[segment][i] = rows[slots[inverse[position]], :dim] for every position of the segment
        whose slot is not -1; the others are left as they are, so that a call can be answered in
        parts."""

    def gather_pooled(
        self,
        rows: Rows,
        slots: Slots,
        inverse: NDArray[np.int32],
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows,
    ) -> None:
        """out[bag] = the sum (or mean) over the bag's rows, contract.md rule 8; dim is
        out.shape[1].

        inverse, weights : (offsets[-1],), those of one segment; all its rows are present
        """

    def gather_rows(self, rows: Rows, slots: Slots, out: Rows) -> None:
        """out[i] = rows[slots[i]], whole records."""

    def scatter_rows(self, source: Rows, rows: Rows, slots: Slots) -> None:
        """rows[slots[i]] = source[i], whole records, NaNs made canonical; slots are unique."""

    def sum_by_key(
        self,
        batch: Batch,
        groups: Groups,
        gradients: Sequence[Gradients],
        scale: np.float32,
        sums: Rows,
    ) -> int:
        """sums[id] = scale * (the sum over the id's occurrences, contract.md rule 2). One pass, in
        which non-finite results are noticed.

        Returns -1, or the lowest id whose sum before or after the scale is not finite.
        """

    def apply(
        self,
        kind: str,
        rows: Rows,
        slots: Slots,
        keys: Keys,
        sums: Rows,
        parameters: TableParameters,
        dirty: Flags,
    ) -> None:
        """Apply optimizer `kind` (contract.md rule 4) to rows[slots[i]] with g = sums[i];
        dirty[slot] = 1.

        keys : (m,) unique row keys, whose table ids select the scalars. dim is sums.shape[1].
        """

    def initialize(
        self,
        rows: Rows,
        slots: Slots,
        keys: Keys,
        parameters: TableParameters,
        dim: int,
        state_dim: int,
    ) -> None:
        """Write the initial record (contract.md rule 10) of keys[i] to rows[slots[i]], padding
        zeroed."""

    def touch(self, scores: NDArray[np.int64], slots: Slots, clock: int, lfu: bool) -> None:
        """Score the slots of a call, -1 passed over. LRU: the clock. LFU: (count + 1, saturating)
        << 40 | clock. The clock is below 2**40; a slot that is given to another row starts again
        from 0."""

    def age_scores(self, scores: NDArray[np.int64]) -> None:
        """Halve every LFU count (rounded down); the clocks stay."""

    def select_victims(
        self,
        scores: NDArray[np.int64],
        slot_keys: Keys,
        clock: int,
        count: int,
        victims: Slots,
    ) -> int:
        """Write the up to `count` resident slots of lowest score that this clock has not touched
        (score & (2**40 - 1) != clock), in ascending order of slot; return how many.

        slot_keys : (slots,) EMPTY_KEY where a slot is free
        Of equal scores the lowest slots are taken. `victims` has room for `count`.
        """

    def count_accesses(self, inverse: NDArray[np.int32], slots: Slots) -> int:
        """Return how many positions have a resident row (slots[inverse] >= 0)."""

    def warm_up(self) -> None:
        """Make every kernel ready, so that no later call waits for a compiler."""

    def close(self) -> None:
        """End the device's threads and drop its scratch. Arrays that were allocated stay valid."""

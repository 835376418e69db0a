"""The CPU: Numba kernels over NumPy arrays, shared among a few threads.

A call that is worth it is cut into ranges of equal work; each element of a result is computed by
one thread in the order that the contract fixes, so the bits do not depend on `threads`. Small calls
stay on the caller: waking a thread takes some twenty microseconds. The threads hold no GIL while
they work.

Scratch is by name, and only grows. This module imports Numba; the package `embstore.device` does
not, so whoever chooses the device imports this file when it is chosen.
"""

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.arithmetic.compiled import table_places
from embstore.arithmetic.denormals import check_denormals
from embstore.arithmetic.jit import address, compile_kernels
from embstore.arrays import EMPTY_KEY, KEY_BITS, Keys, Rows
from embstore.device.base import (
    Batch,
    Counts,
    Flags,
    Gradients,
    IndexArrays,
    SlotContents,
    Slots,
    TableParameters,
)
from embstore.device.host import host_facts
from embstore.device.layout import STASH_KEYS, bucket_count, form_of, index_bytes
from embstore.device.memory import lengthened, move, release, reserve
from embstore.device.threshold import find_threshold
from embstore.device.workers import Range, Workers, equal_ranges
from embstore.kernels import apply as apply_kernels
from embstore.kernels import select_victims as victim_kernels
from embstore.kernels import slots as slot_kernels
from embstore.kernels.gather import gather, gather_rows
from embstore.kernels.gather_pooled import gather_pooled
from embstore.kernels.group import group
from embstore.kernels.initialize import initialize
from embstore.kernels.insert import erase, insert
from embstore.kernels.probe import BUCKET_WIDTH, probe
from embstore.kernels.scatter import scatter_rows
from embstore.kernels.sum_by_key import sum_by_key
from embstore.kernels.unique import unique

THREADS_MAX = 4
"""Default bound on threads: memory bandwidth is shared, and trainers want cores too."""
_SPLIT_BYTES = 1 << 20
"""Bytes a call moves before a second thread pays."""
_RANGES_PER_THREAD = 2
"""More than one, so that a thread that starts late leaves its share to the others."""
_NO_WEIGHTS = np.empty(0, np.float32)
_NO_COUNTS = np.empty(0, np.int64)


@dataclass
class CpuSlots:
    """`SlotMemory` as arrays by slot, which reserve address space for all there may be."""

    rows: Rows  # (slots_max, stride)
    keys: Keys  # (slots_max,)
    scores: NDArray[np.int64]  # (slots_max,)
    dirty: Flags  # (slots_max,)


@dataclass
class CpuBatch(Batch):
    """A batch; `id_bounds` cut ids into segments as `bounds` cut positions."""

    id_bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


def _checked(work: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """Return `work`, preceded by the check that the thread it runs on keeps denormals."""

    def checked(low: int, high: int) -> Any:
        check_denormals()
        return work(low, high)

    return checked


class CpuDevice:
    """The Device protocol on the CPU. One thread calls it at a time.

    Parameters
    ----------
    threads : that share a call, the caller included; None: as many as there are cores, at most 4
    """

    name = "cpu"
    keeps_batches = True
    is_lost = False

    def __init__(self, threads: int | None = None) -> None:
        self._workers = Workers(threads or min(THREADS_MAX, os.cpu_count() or 1))
        self._split_bytes = _SPLIT_BYTES
        self._scratch: dict[str, NDArray[Any]] = {}
        # Above everything in the table of `unique`; see embstore.arithmetic.compiled.
        self._unique_base = 1
        # 0, 1, 2, ...: what `distinct` gives its batches parts of. It is replaced, never written.
        self._ids = np.empty(0, np.int32)

    def close(self) -> None:
        """End the threads and drop the scratch. Arrays that were handed out stay valid."""
        self._workers.close()
        self._scratch.clear()

    def warm_up(self) -> None:
        """Compile every kernel, or load it from Numba's cache."""
        compile_kernels()

    def facts(self) -> dict[str, Any]:
        """Return the processor's model, the host's memory, and the threads of a call."""
        return host_facts() | {"threads": self._workers.threads}

    # -- memory ------------------------------------------------------------------------------------

    def check_budget(self, cache_bytes: int, held_bytes: int) -> None:
        """Memory is taken page by page, and may be swapped: the operator's word is taken for it."""

    slab_bytes_max = 16 << 20

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        return row_bytes + 8 + 8 + 1

    def slab_slots(self, wanted: int) -> int:
        return wanted

    def allocate_slots(self, stride: int) -> CpuSlots:
        return CpuSlots(
            rows=self.allocate_rows(0, stride),
            keys=reserve(0).view(np.int64),
            scores=reserve(0).view(np.int64),
            dirty=reserve(0),
        )

    def reserve_slots(
        self, memory: CpuSlots, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        if slots_max <= len(memory.keys):
            return
        longer = self.allocate_rows(slots_max, memory.rows.shape[1])
        move(memory.rows[:slot_count], longer)
        memory.rows = longer
        memory.dirty = lengthened(memory.dirty, slot_count, slots_max)
        memory.scores = lengthened(memory.scores, slot_count, slots_max)
        memory.keys = lengthened(memory.keys, slot_count, slots_max)  # last: its length is asked

    def add_slots(self, memory: CpuSlots, low: int, high: int) -> None:
        memory.keys[low:high] = EMPTY_KEY
        memory.dirty[low:high] = 0

    def drop_slots(self, memory: CpuSlots, low: int, high: int) -> None:
        # The pages that these slots share with others gone before go too: a page holds no more
        # slots than it has bytes.
        end = high + mmap.PAGESIZE
        for array in (memory.rows, memory.dirty, memory.scores, memory.keys):
            release(array[low:end])

    def allocate(self, count: int, dtype: DTypeLike, *, width: int | None = None) -> NDArray[Any]:
        return np.empty(count if width is None else (count, width), dtype)

    def allocate_rows(self, count: int, stride: int) -> Rows:
        return reserve(count * stride * 4).view(np.float32).reshape(count, stride)

    def allocate_index(self, slot_count: int) -> IndexArrays:
        shape = (bucket_count(slot_count), BUCKET_WIDTH)
        places = shape[0] * shape[1]
        keys = reserve(places * 8).view(np.int64).reshape(shape)
        slots = reserve(places * 4).view(np.uint32).reshape(shape)
        keys.fill(EMPTY_KEY)
        return IndexArrays(
            bucket_keys=keys,
            bucket_slots=slots,
            stash_keys=np.full(STASH_KEYS, EMPTY_KEY),
            stash_slots=np.zeros(STASH_KEYS, np.uint32),
            stash_count=np.zeros(1, np.int64),
        )

    def index_bytes(self, slot_count: int) -> int:
        return index_bytes(slot_count)

    def upload(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def download(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def secure(self, count: int) -> None:
        """Memory of the host does not fail by the call."""

    def adopt(self, array: Any, dtype: DTypeLike, dimensions: int, *, write: bool = False) -> None:
        """Every array is the host's."""

    # -- keys --------------------------------------------------------------------------------------

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> CpuBatch:
        bounds = np.cumsum([0, *(len(keys) for _, _, keys in segments)])
        count = int(bounds[-1])
        table = self._take("unique.table", 2 * table_places(count), np.int64, zeroed=True)
        batch = CpuBatch(
            unique_keys=self._take("unique.keys", count, np.int64),
            inverse=self._take("unique.inverse", count, np.int32),
            bounds=bounds,
            id_bounds=np.empty(len(segments) + 1, np.int64),
        )
        batch.found.outside = unique(
            np.array([address(keys) for _, _, keys in segments], np.int64),
            bounds,
            np.array([table_id for table_id, _, _ in segments], np.int64),
            np.array([rows for _, rows, _ in segments], np.int64),
            table.reshape(-1, 2),
            table_places(count),
            self._unique_base,
            batch.unique_keys,
            batch.inverse,
            batch.id_bounds,
        )
        self._unique_base += count
        if batch.found.outside < 0:
            batch.unique_keys = batch.unique_keys[: batch.id_bounds[-1]]
        return batch

    def distinct(self, segments: Sequence[tuple[int, int, Keys]]) -> CpuBatch:
        bounds = np.cumsum([0, *(len(keys) for _, _, keys in segments)])
        row_keys = np.empty(bounds[-1], np.int64)
        for (table_id, _, keys), (low, high) in zip(segments, pairwise(bounds), strict=True):
            np.bitwise_or(keys, table_id << KEY_BITS, out=row_keys[low:high])
        inverse = self._first_ids(len(row_keys))
        return CpuBatch(unique_keys=row_keys, inverse=inverse, bounds=bounds, id_bounds=bounds)

    def _first_ids(self, count: int) -> NDArray[np.int32]:
        if count > len(self._ids):
            self._ids = np.arange(max(count, 3 * len(self._ids) // 2), dtype=np.int32)
            self._ids.flags.writeable = False
        return self._ids[:count]

    def probe(self, index: IndexArrays, batch: Batch, slots: Slots) -> None:
        if batch.found.outside < 0:
            keys = batch.unique_keys
            batch.found.missing = self.find(index, keys, slots[: len(keys)])

    def settle(self, batch: Batch) -> None:
        """Nothing is under way."""

    def find(self, index: IndexArrays, keys: Keys, slots: Slots) -> int:
        def work(low: int, high: int) -> int:
            return probe(
                index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
                index.stash_count, keys, slots, low, high,
            )  # fmt: skip

        return sum(self.run(work, self.ranges(len(keys), 64)))

    def absent(self, keys: Keys, slots: Slots, missing: int) -> tuple[Slots, Keys]:
        places = np.flatnonzero(slots < 0)
        return places, keys[places]

    def set_slots(self, slots: Slots, places: Slots, values: Slots) -> None:
        slots[places] = values

    def count_accesses(
        self, batch: Batch, slots: Slots, low: int, high: int, counts: Counts | None
    ) -> tuple[int, int]:
        counts = _NO_COUNTS if counts is None else counts
        found = np.empty(2, np.int64)
        victim_kernels.count_accesses(batch.inverse, slots, low, high, counts, found)
        return int(found[0]), int(found[1])

    # -- rows --------------------------------------------------------------------------------------

    def gather(
        self, rows: Rows, slots: Slots, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        out_addresses = np.array([address(out) for out in outs], np.int64)

        def work(low: int, high: int) -> None:
            gather(rows, slots, batch.inverse, batch.bounds, out_addresses, dim, low, high)

        self.run(work, self.ranges(len(batch.inverse), 8 * dim))

    def gather_pooled(
        self,
        rows: Rows,
        slots: Slots,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows,
    ) -> None:
        weights = _NO_WEIGHTS if weights is None else weights

        def work(low: int, high: int) -> None:
            gather_pooled(rows, slots, batch.inverse, offsets, mean, weights, out, low, high)

        self.run(_checked(work), self._ranges_of(offsets, 4 * out.shape[1]))

    def sum_by_key(
        self, batch: Batch, gradients: Sequence[Gradients], scale: np.float32, sums: Rows
    ) -> None:
        assert isinstance(batch, CpuBatch)
        if batch.found.outside >= 0:
            return
        starts = self._take("group.starts", len(batch.unique_keys) + 1, np.int64)
        positions = self._take("group.positions", len(batch.inverse), np.int32)
        group(batch.inverse, starts, positions)
        row_addresses = np.array([address(g.rows) for g in gradients], np.int64)
        sources = np.array([address(g.source) for g in gradients], np.int64)
        coefficients = np.array([address(g.coefficients) for g in gradients], np.int64)
        forms = np.array([form_of(g) for g in gradients], np.int8)

        def work(low: int, high: int) -> int:
            return sum_by_key(
                starts, positions, batch.bounds, batch.id_bounds, row_addresses, sources,
                coefficients, forms, scale, sums, low, high,
            )  # fmt: skip

        wrong = self.run(_checked(work), self._ranges_of(starts, 4 * sums.shape[1]))
        batch.found.not_finite = next((id for id in wrong if id >= 0), -1)

    def apply(
        self,
        kind: str,
        memory: CpuSlots,
        slots: Slots,
        keys: Keys,
        sums: Rows,
        parameters: TableParameters,
    ) -> None:
        kind_number = apply_kernels.KINDS[kind]
        rows, dirty = memory.rows, memory.dirty

        def work(low: int, high: int) -> None:
            apply_kernels.apply(
                kind_number, rows, slots, keys, sums, parameters.scalars, dirty, low, high
            )

        self.run(_checked(work), self.ranges(len(slots), 8 * rows.shape[1]))

    # -- rows and the host -------------------------------------------------------------------------

    def staging(self, count: int, stride: int) -> Rows:
        return self._take("staging", count * stride, np.float32).reshape(count, stride)

    def scatter_rows(self, source: Rows, rows: Rows, slots: Slots) -> None:
        def work(low: int, high: int) -> None:
            scatter_rows(source, rows, slots, low, high)

        self.run(work, self.ranges(len(slots), 8 * rows.shape[1]))

    def initialize(
        self,
        rows: Rows,
        slots: Slots,
        keys: Keys,
        parameters: TableParameters,
        dim: int,
        state_dim: int,
    ) -> None:
        def work(low: int, high: int) -> None:
            initialize(
                rows, slots, keys, parameters.initializer_kinds, parameters.initializer_values,
                parameters.seeds, parameters.initial_state, dim, state_dim, low, high,
            )  # fmt: skip

        self.run(_checked(work), self.ranges(len(slots), 16 * rows.shape[1]))

    def gather_rows(self, rows: Rows, slots: Slots, out: Rows, first: int) -> None:
        part = out[first : first + len(slots)]

        def work(low: int, high: int) -> None:
            gather_rows(rows, slots, part, low, high)

        self.run(work, self.ranges(len(slots), 8 * rows.shape[1]))

    def read_rows(self, rows: Rows, slots: Slots) -> Rows:
        out = np.empty((len(slots), rows.shape[1]), np.float32)
        self.gather_rows(rows, slots, out, 0)
        return out

    def row_pieces(self, rows: Rows, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        yield slice(None), rows, slots

    # -- slots -------------------------------------------------------------------------------------

    def insert(self, index: IndexArrays, keys: Keys, slots: Slots) -> bool:
        return insert(
            index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
            index.stash_count, keys, slots,
        )  # fmt: skip

    def insert_slots(self, index: IndexArrays, memory: CpuSlots, slot_count: int) -> bool:
        slots = np.flatnonzero(memory.keys[:slot_count] != EMPTY_KEY)
        return self.insert(index, memory.keys[slots], slots)

    def erase(self, index: IndexArrays, keys: Keys) -> None:
        erase(index.bucket_keys, index.stash_keys, index.stash_slots, index.stash_count, keys)

    def place_keys(self, memory: CpuSlots, slots: Slots, keys: Keys) -> None:
        slot_kernels.place_keys(memory.keys, memory.scores, memory.dirty, slots, keys)

    def place_pending(self, memory: CpuSlots, slots: Slots, keys: Keys) -> None:
        slot_kernels.place_pending(memory.keys, memory.scores, memory.dirty, slots, keys)

    def arrive(self, memory: CpuSlots, slots: Slots) -> None:
        victim_kernels.arrive(memory.scores, slots)

    def count_pending(self, memory: CpuSlots, slots: Slots) -> int:
        return victim_kernels.count_pending(memory.scores, slots)

    def clear_slots(self, memory: CpuSlots, slots: Slots) -> None:
        slot_kernels.clear_slots(memory.keys, memory.dirty, slots)

    def mark(self, memory: CpuSlots, slots: Slots, *, dirty: bool) -> None:
        memory.dirty[slots] = dirty

    def read_slots(self, memory: CpuSlots, slots: Slots) -> SlotContents:
        return SlotContents(memory.keys[slots], memory.scores[slots], memory.dirty[slots] != 0)

    def read_range(self, memory: CpuSlots, low: int, high: int) -> SlotContents:
        dirty = memory.dirty[low:high].view(np.bool_)
        return SlotContents(memory.keys[low:high], memory.scores[low:high], dirty)

    def touch(self, memory: CpuSlots, slots: Slots, clock: int, counting: int) -> None:
        victim_kernels.touch(memory.scores, slots, clock, counting)

    def set_counts(self, memory: CpuSlots, slots: Slots, counts: NDArray[np.int64]) -> None:
        victim_kernels.set_counts(memory.scores, slots, counts)

    def age_scores(self, memory: CpuSlots, slot_count: int) -> None:
        victim_kernels.age_scores(memory.scores[:slot_count])

    def pin(self, memory: CpuSlots, slots: Slots) -> int:
        return victim_kernels.pin(memory.scores, slots)

    def unpin(self, memory: CpuSlots, slots: Slots) -> int:
        return victim_kernels.unpin(memory.scores, slots)

    def foresee(self, memory: CpuSlots, slots: Slots, scores: NDArray[np.int64]) -> None:
        victim_kernels.foresee(memory.scores, slots, scores)

    def forget_foreseen(self, memory: CpuSlots, slot_count: int) -> None:
        victim_kernels.forget_foreseen(memory.scores[:slot_count])

    def select_victims(
        self, memory: CpuSlots, slot_count: int, clock: int, count: int
    ) -> tuple[Slots, NDArray[np.int64]]:
        scores, slot_keys = memory.scores[:slot_count], memory.keys[:slot_count]
        candidates = _Candidates(self, scores, slot_keys, clock)
        wanted, threshold, ties = find_threshold(candidates, count)
        victims = np.empty(wanted, np.int64)
        if wanted:
            victim_kernels.collect_victims(
                scores, slot_keys, clock, threshold, wanted, ties, victims
            )
        return victims, scores[victims]

    # -- splitting, scratch ------------------------------------------------------------------------

    def run(self, work: Callable[[int, int], Any], ranges: list[Range]) -> list[Any]:
        """Return the results of `work` on each range."""
        return self._workers.run(work, ranges)

    def ranges(self, count: int, item_bytes: int) -> list[Range]:
        """Cut [0, count) into equal ranges, if what they move is worth a second thread."""
        if self._workers.threads == 1 or count * item_bytes < self._split_bytes:
            return [(0, count)]
        return equal_ranges(count, self._workers.threads * _RANGES_PER_THREAD)

    def _ranges_of(self, bounds: NDArray[np.int64], item_bytes: int) -> list[Range]:
        """Cut the intervals between `bounds` into ranges of nearly equal length in all."""
        cuts = self.ranges(int(bounds[-1]), item_bytes)
        if len(cuts) == 1:
            return [(0, len(bounds) - 1)]
        ends = np.searchsorted(bounds, [high for _, high in cuts[:-1]]).tolist()
        ends = [0, *ends, len(bounds) - 1]
        return list(pairwise(ends))

    def _take(self, name: str, count: int, dtype: Any, zeroed: bool = False) -> NDArray[Any]:
        """Return (count,) scratch of that name, new where the last was too short.

        zeroed : what is new is zeros; what is old is as it was left
        """
        array = self._scratch.get(name)
        if array is None or len(array) < count:
            size = max(count, 16, 3 * len(array) // 2 if array is not None else 0)
            array = np.zeros(size, dtype) if zeroed else np.empty(size, dtype)
            self._scratch[name] = array
        return array[:count]


@dataclass
class _Candidates:
    """`Scores` of the slots that a clock has not touched."""

    device: CpuDevice
    scores: NDArray[np.int64]
    slot_keys: Keys
    clock: int

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        def work(low: int, high: int) -> NDArray[np.int64]:
            result = np.empty(3, np.int64)
            victim_kernels.score_range(
                self.scores, self.slot_keys, self.clock, floor, ceiling, result, low, high
            )
            return result

        parts = np.array(self.device.run(work, self.device.ranges(len(self.scores), 16)))
        return int(parts[:, 0].sum()), int(parts[:, 1].min()), int(parts[:, 2].max())

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        def work(low: int, high: int) -> NDArray[np.int64]:
            bins = np.empty(victim_kernels.BINS, np.int64)
            victim_kernels.count_scores(
                self.scores, self.slot_keys, self.clock, floor, ceiling, shift, bins, low, high
            )
            return bins

        total = np.zeros(victim_kernels.BINS, np.int64)
        for bins in self.device.run(work, self.device.ranges(len(self.scores), 16)):
            total += bins
        return total

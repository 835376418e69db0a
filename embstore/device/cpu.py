"""The CPU: Numba kernels over NumPy arrays, shared among a few threads.

A call that is worth it is cut into ranges of equal work; each element of a result is computed by
one thread in the order that the contract fixes, so the bits do not depend on `threads`. Small calls
stay on the caller: waking a thread takes some twenty microseconds. The threads hold no GIL while
they work.

Scratch is by name, and only grows. This module imports Numba; the package `embstore.device` does
not, so whoever chooses the device imports this file when it is chosen.
"""

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.compiled import DIVIDED, PLAIN, WEIGHTED, table_places
from embstore.arithmetic.denormals import check_denormals
from embstore.arithmetic.jit import address, compile_kernels
from embstore.arrays import EMPTY_KEY, Keys, Rows
from embstore.device.base import (
    Batch,
    Flags,
    Gradients,
    Groups,
    IndexArrays,
    Slots,
    TableParameters,
)
from embstore.device.memory import move, release, reserve
from embstore.device.workers import Range, Workers
from embstore.kernels import apply as apply_kernels
from embstore.kernels import select_victims as victim_kernels
from embstore.kernels.gather import gather, gather_rows
from embstore.kernels.gather_pooled import gather_pooled
from embstore.kernels.initialize import initialize
from embstore.kernels.insert import erase, insert
from embstore.kernels.probe import BUCKET_WIDTH, probe
from embstore.kernels.scatter import scatter_rows
from embstore.kernels.sum_by_key import sum_by_key
from embstore.kernels.unique import group, unique

THREADS_MAX = 4
"""Default bound on threads: memory bandwidth is shared, and trainers want cores too."""
STASH_KEYS = 256
_SPLIT_BYTES = 1 << 20
"""Bytes a call moves before a second thread pays."""
_RANGES_PER_THREAD = 2
"""More than one, so that a thread that starts late leaves its share to the others."""
_SCORE_MAX = (1 << 63) - 1
_NO_WEIGHTS = np.empty(0, np.float32)


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

    def __init__(self, threads: int | None = None) -> None:
        self._workers = Workers(threads or min(THREADS_MAX, os.cpu_count() or 1))
        self._split_bytes = _SPLIT_BYTES
        self._scratch: dict[str, NDArray[Any]] = {}
        # Above everything in the table of `unique`; see embstore.arithmetic.compiled.
        self._unique_base = 1

    def close(self) -> None:
        """End the threads and drop the scratch. Arrays that were handed out stay valid."""
        self._workers.close()
        self._scratch.clear()

    def warm_up(self) -> None:
        """Compile every kernel, or load it from Numba's cache."""
        compile_kernels()

    # -- memory ------------------------------------------------------------------------------------

    def allocate_rows(self, slot_count_max: int, stride: int) -> Rows:
        return reserve(slot_count_max * stride * 4).view(np.float32).reshape(slot_count_max, stride)

    def lengthen_rows(self, rows: Rows, slot_count: int, slot_count_max: int) -> Rows:
        longer = self.allocate_rows(slot_count_max, rows.shape[1])
        move(rows[:slot_count], longer)
        return longer

    def release_rows(self, rows: Rows, low: int, high: int) -> None:
        release(rows[low:high])

    def allocate_index(self, slot_count: int) -> IndexArrays:
        bucket_count = _bucket_count(slot_count)
        shape = (bucket_count, BUCKET_WIDTH)
        keys = reserve(bucket_count * BUCKET_WIDTH * 8).view(np.int64).reshape(shape)
        slots = reserve(bucket_count * BUCKET_WIDTH * 4).view(np.uint32).reshape(shape)
        keys.fill(EMPTY_KEY)
        return IndexArrays(
            bucket_keys=keys,
            bucket_slots=slots,
            stash_keys=np.full(STASH_KEYS, EMPTY_KEY),
            stash_slots=np.zeros(STASH_KEYS, np.uint32),
            stash_count=np.zeros(1, np.int64),
        )

    def index_bytes(self, slot_count: int) -> int:
        return _bucket_count(slot_count) * BUCKET_WIDTH * 12 + STASH_KEYS * 12 + 8

    # -- keys --------------------------------------------------------------------------------------

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> tuple[Batch, int]:
        bounds = self._bounds("unique.bounds", [len(keys) for _, _, keys in segments])
        count = int(bounds[-1])
        table = self._take("unique.table", 2 * table_places(count), np.int64, zeroed=True)
        batch = Batch(
            unique_keys=self._take("unique.keys", count, np.int64),
            inverse=self._take("unique.inverse", count, np.int32),
            bounds=bounds,
            id_bounds=self._take("unique.id_bounds", len(segments) + 1, np.int64),
        )
        position = unique(
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
        if position >= 0:
            return batch, position
        unique_keys = batch.unique_keys[: batch.id_bounds[-1]]
        return Batch(unique_keys, batch.inverse, batch.bounds, batch.id_bounds), -1

    def group(self, batch: Batch) -> Groups:
        starts = self._take("group.starts", len(batch.unique_keys) + 1, np.int64)
        positions = self._take("group.positions", len(batch.inverse), np.int32)
        group(batch.inverse, starts, positions)
        return Groups(starts, positions)

    def probe(self, index: IndexArrays, keys: Keys, slots: Slots) -> int:
        def work(low: int, high: int) -> int:
            return probe(
                index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
                index.stash_count, keys, slots, low, high,
            )  # fmt: skip

        return sum(self._run(work, self._ranges(len(keys), 64)))

    def insert(self, index: IndexArrays, keys: Keys, slots: Slots) -> bool:
        return insert(
            index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
            index.stash_count, keys, slots,
        )  # fmt: skip

    def erase(self, index: IndexArrays, keys: Keys) -> None:
        erase(index.bucket_keys, index.stash_keys, index.stash_slots, index.stash_count, keys)

    # -- rows --------------------------------------------------------------------------------------

    def gather(
        self, rows: Rows, slots: Slots, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        out_addresses = np.array([address(out) for out in outs], np.int64)

        def work(low: int, high: int) -> None:
            gather(rows, slots, batch.inverse, batch.bounds, out_addresses, dim, low, high)

        self._run(work, self._ranges(len(batch.inverse), 8 * dim))

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
        weights = _NO_WEIGHTS if weights is None else weights

        def work(low: int, high: int) -> None:
            gather_pooled(rows, slots, inverse, offsets, mean, weights, out, low, high)

        self._run(_checked(work), self._ranges_of(offsets, 4 * out.shape[1]))

    def gather_rows(self, rows: Rows, slots: Slots, out: Rows) -> None:
        def work(low: int, high: int) -> None:
            gather_rows(rows, slots, out, low, high)

        self._run(work, self._ranges(len(slots), 8 * rows.shape[1]))

    def scatter_rows(self, source: Rows, rows: Rows, slots: Slots) -> None:
        def work(low: int, high: int) -> None:
            scatter_rows(source, rows, slots, low, high)

        self._run(work, self._ranges(len(slots), 8 * rows.shape[1]))

    def sum_by_key(
        self,
        batch: Batch,
        groups: Groups,
        gradients: Sequence[Gradients],
        scale: np.float32,
        sums: Rows,
    ) -> int:
        row_addresses = np.array([address(g.rows) for g in gradients], np.int64)
        sources = np.array([address(g.source) for g in gradients], np.int64)
        coefficients = np.array([address(g.coefficients) for g in gradients], np.int64)
        forms = np.array([_form(g) for g in gradients], np.int8)

        def work(low: int, high: int) -> int:
            return sum_by_key(
                groups.starts, groups.positions, batch.bounds, batch.id_bounds, row_addresses,
                sources, coefficients, forms, scale, sums, low, high,
            )  # fmt: skip

        found = self._run(_checked(work), self._ranges_of(groups.starts, 4 * sums.shape[1]))
        return next((id for id in found if id >= 0), -1)

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
        kind_number = apply_kernels.KINDS[kind]

        def work(low: int, high: int) -> None:
            apply_kernels.apply(
                kind_number, rows, slots, keys, sums, parameters.scalars, dirty, low, high
            )

        self._run(_checked(work), self._ranges(len(slots), 8 * rows.shape[1]))

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

        self._run(_checked(work), self._ranges(len(slots), 16 * rows.shape[1]))

    # -- scores ------------------------------------------------------------------------------------

    def touch(self, scores: NDArray[np.int64], slots: Slots, clock: int, lfu: bool) -> None:
        victim_kernels.touch(scores, slots, clock, lfu)

    def age_scores(self, scores: NDArray[np.int64]) -> None:
        victim_kernels.age_scores(scores)

    def select_victims(
        self,
        scores: NDArray[np.int64],
        slot_keys: Keys,
        clock: int,
        count: int,
        victims: Slots,
    ) -> int:
        found, lowest, highest = self._score_range(scores, slot_keys, clock, 0, _SCORE_MAX)
        wanted = min(count, found)
        if wanted == 0:
            return 0
        threshold, ties = highest, wanted
        if wanted < found:
            threshold, ties = self._threshold(scores, slot_keys, clock, wanted, lowest, highest)
        return victim_kernels.collect_victims(
            scores, slot_keys, clock, threshold, wanted, ties, victims
        )

    def count_accesses(self, inverse: NDArray[np.int32], slots: Slots) -> int:
        return victim_kernels.count_accesses(inverse, slots)

    def _threshold(
        self,
        scores: NDArray[np.int64],
        slot_keys: Keys,
        clock: int,
        wanted: int,
        lowest: int,
        highest: int,
    ) -> tuple[int, int]:
        """Return the score of the last victim, and how many victims have exactly that score.

        Candidates in [lowest, highest] hold the wanted-th; those below are all victims.
        """
        while True:
            shift = max((highest - lowest).bit_length() - victim_kernels.BIN_BITS, 0)
            bins = self._count_scores(scores, slot_keys, clock, lowest, highest + 1, shift)
            ends = np.cumsum(bins)
            place = int(np.searchsorted(ends, wanted))
            lowest += place << shift
            highest = min(highest, lowest + (1 << shift) - 1)
            if int(ends[place]) == wanted:
                return highest, wanted
            wanted -= int(ends[place] - bins[place])
            if shift == 0:
                return lowest, wanted
            if shift > victim_kernels.BIN_BITS:
                _, lowest, highest = self._score_range(
                    scores, slot_keys, clock, lowest, highest + 1
                )

    def _score_range(
        self, scores: NDArray[np.int64], slot_keys: Keys, clock: int, floor: int, ceiling: int
    ) -> tuple[int, int, int]:
        """Return how many candidates have floor <= score < ceiling, their lowest and highest."""

        def work(low: int, high: int) -> NDArray[np.int64]:
            result = np.empty(3, np.int64)
            victim_kernels.score_range(scores, slot_keys, clock, floor, ceiling, result, low, high)
            return result

        parts = np.array(self._run(work, self._ranges(len(scores), 16)))
        return int(parts[:, 0].sum()), int(parts[:, 1].min()), int(parts[:, 2].max())

    def _count_scores(
        self,
        scores: NDArray[np.int64],
        slot_keys: Keys,
        clock: int,
        floor: int,
        ceiling: int,
        shift: int,
    ) -> NDArray[np.int64]:
        def work(low: int, high: int) -> NDArray[np.int64]:
            bins = np.empty(victim_kernels.BINS, np.int64)
            victim_kernels.count_scores(
                scores, slot_keys, clock, floor, ceiling, shift, bins, low, high
            )
            return bins

        total = np.zeros(victim_kernels.BINS, np.int64)
        for bins in self._run(work, self._ranges(len(scores), 16)):
            total += bins
        return total

    # -- splitting, scratch ------------------------------------------------------------------------

    def _run(self, work: Callable[[int, int], Any], ranges: list[Range]) -> list[Any]:
        return self._workers.run(work, ranges)

    def _ranges(self, count: int, item_bytes: int) -> list[Range]:
        """Cut [0, count) into equal ranges, if what they move is worth a second thread."""
        if self._workers.threads == 1 or count * item_bytes < self._split_bytes:
            return [(0, count)]
        pieces = self._workers.threads * _RANGES_PER_THREAD
        cuts = [count * i // pieces for i in range(pieces + 1)]
        return list(pairwise(cuts))

    def _ranges_of(self, bounds: NDArray[np.int64], item_bytes: int) -> list[Range]:
        """Cut the intervals between `bounds` into ranges of nearly equal length in all."""
        cuts = self._ranges(int(bounds[-1]), item_bytes)
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

    def _bounds(self, name: str, sizes: list[int]) -> NDArray[np.int64]:
        bounds = self._take(name, len(sizes) + 1, np.int64)
        bounds[0] = 0
        np.cumsum(np.array(sizes, np.int64), out=bounds[1:])
        return bounds


def _bucket_count(slot_count: int) -> int:
    return max(1, -(-3 * slot_count // (2 * BUCKET_WIDTH)))


def _form(gradients: Gradients) -> int:
    if gradients.coefficients is None:
        return PLAIN
    return DIVIDED if gradients.divide else WEIGHTED

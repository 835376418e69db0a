"""Rows on the CPU: they are gathered, summed and updated for a call, and copied for the cache.

Every method that computes runs its kernel over ranges (`cpu_work.py`). If the kernel does
arithmetic, each thread keeps denormal numbers (does not flush them to zero).
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.compiled_update import KINDS
from embstore.arithmetic.denormals import keeping
from embstore.arithmetic.jit import addresses
from embstore.arrays import Keys, Rows
from embstore.device.cpu_keys import CpuBatch
from embstore.device.cpu_memory import CpuSlotMemory
from embstore.device.cpu_work import CpuWork
from embstore.device.values import (
    Answer,
    Batch,
    Gradients,
    IndexArrays,
    PoolUpdate,
    Slots,
    TableParameters,
)
from embstore.kernels.apply import apply
from embstore.kernels.gather import copy_slots, gather, gather_rows, look_up
from embstore.kernels.gather_pooled import gather_pooled
from embstore.kernels.group import group
from embstore.kernels.initialize import initialize
from embstore.kernels.scatter import scatter_rows
from embstore.kernels.sum_by_key import columns_of, sum_by_key
from embstore.layout import VALUE_BYTES, Layout

_NO_WEIGHTS = np.empty(0, np.float32)
_READ_AND_WRITTEN = 2
_GENERATED = 4
"""The cost of generating a row, expressed as a number of passes over the row's bytes."""


class CpuRows:
    """The `DeviceRows` of the CPU."""

    look_up_keys_max = 8192  # for more keys, sharing among threads is faster

    def __init__(self, work: CpuWork) -> None:
        self._work = work

    def gather(
        self, rows: Rows, slots: Slots, batch: Batch, dim: int, outs: Sequence[Rows]
    ) -> None:
        work = partial(gather, rows, slots, batch.inverse, batch.bounds, addresses(outs), dim)
        item_bytes = _READ_AND_WRITTEN * VALUE_BYTES * dim
        self._work.share(work, len(batch.inverse), item_bytes)

    def look_up(
        self,
        memory: CpuSlotMemory,
        index: IndexArrays,
        segments: Sequence[tuple[int, int, Keys]],
        outs: Sequence[Rows],
        dim: int,
        clock: int,
        counting: int,
        _moves: int,
    ) -> int:
        table_ids, limits, keys = zip(*segments, strict=True)
        bounds = np.cumsum([0, *map(len, keys)])
        return look_up(
            index.bucket_keys, index.bucket_slots, index.stash_keys, index.stash_slots,
            index.stash_count, memory.scores, memory.rows, addresses(keys), bounds,
            np.array(table_ids, np.int64), np.array(limits, np.int64), addresses(outs), dim, clock,
            counting, self._work.take("look_up", int(bounds[-1]), np.int64),
        )  # fmt: skip

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
        aligned = out if out.flags.aligned else np.empty_like(out)
        work = partial(gather_pooled, rows, slots, batch.inverse, offsets, mean, weights, aligned)
        self._work.run(partial(keeping, work), self._work.ranges_of(offsets, out.strides[0]))
        if aligned is not out:
            out[:] = aligned

    def begin_gather_pooled(self, *_: object) -> None:
        return None

    def sum_by_key(
        self, batch: Batch, gradients: Sequence[Gradients], scale: np.float32, sums: Rows
    ) -> None:
        assert isinstance(batch, CpuBatch)
        if batch.found.outside >= 0:
            return
        *columns, forms = zip(*map(columns_of, gradients), strict=True)
        rows, sources, coefficients = map(addresses, columns)
        starts = self._work.take("group.starts", len(batch.unique_keys) + 1, np.int64)
        positions = self._work.take("group.positions", len(batch.inverse), np.int32)
        group(batch.inverse, starts, positions)
        work = partial(
            sum_by_key, starts, positions, batch.bounds, batch.id_bounds, rows, sources,
            coefficients, np.array(forms, np.int8), scale, sums,
        )  # fmt: skip
        cuts = self._work.ranges_of(starts, sums.strides[0])
        large = {*self._work.run(partial(keeping, work), cuts)} - {-1}
        batch.found.large = min(large, default=-1)

    def begin_update(self, parts: Sequence[PoolUpdate]) -> Answer[bool] | None:
        return None

    def apply(
        self,
        kind: str,
        memory: CpuSlotMemory,
        slots: Slots,
        keys: Keys,
        sums: Rows,
        parameters: TableParameters,
    ) -> None:
        work = partial(
            apply, KINDS[kind], memory.rows, slots, keys, parameters.key_mask, sums,
            parameters.scalars, memory.dirty,
        )  # fmt: skip
        item_bytes = _READ_AND_WRITTEN * memory.rows.strides[0]
        self._work.share(partial(keeping, work), len(slots), item_bytes)

    def scatter_rows(self, source: Rows, rows: Rows, slots: Slots) -> None:
        work = partial(scatter_rows, source, rows, slots)
        item_bytes = _READ_AND_WRITTEN * rows.strides[0]
        self._work.share(work, len(slots), item_bytes)

    def initialize(
        self, rows: Rows, slots: Slots, keys: Keys, parameters: TableParameters, layout: Layout
    ) -> None:
        work = partial(
            initialize, rows, slots, keys, parameters.key_mask, parameters.initializer_kinds,
            parameters.initializer_values, parameters.seeds, parameters.initial_state, layout.dim,
            layout.state_dim,
        )  # fmt: skip
        item_bytes = _GENERATED * rows.strides[0]
        self._work.share(partial(keeping, work), len(slots), item_bytes)

    def gather_rows(self, rows: Rows, slots: Slots, out: Rows, first: int) -> None:
        work = partial(gather_rows, rows, slots, out[first : first + len(slots)])
        item_bytes = _READ_AND_WRITTEN * rows.strides[0]
        self._work.share(work, len(slots), item_bytes)

    def copy_slots(self, rows: Rows, slots: Slots, targets: Rows, places: Slots) -> None:
        work = partial(copy_slots, rows, slots, targets, places)
        item_bytes = _READ_AND_WRITTEN * rows.strides[0]
        self._work.share(work, len(slots), item_bytes)

    def read_rows(self, rows: Rows, slots: Slots) -> Rows:
        out = np.empty((len(slots), rows.shape[1]), rows.dtype)
        self.gather_rows(rows, slots, out, 0)
        return out

    def row_pieces(self, rows: Rows, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        yield slice(None), rows, slots

"""Rows on a GPU: they are gathered and updated for a call, and copied up and down for the cache.

Missing rows are copied through a ring of pinned buffers, each with a twin on the device
(staging.py). While the rows of one buffer are scattered, the next buffer is copied, and storage
reads into a third. The rows of victims are copied down in larger pieces: while storage packs and
writes one piece, the next piece is copied.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import unpack_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.device.gpu_positions import locate, named, owned
from embstore.device.gpu_sums import Summed, summed
from embstore.device.gpu_work import (
    FINDINGS_FORMAT,
    LANES,
    MISSING,
    NULL,
    UNIQUE_COUNT,
    GpuBatch,
    GpuWork,
    Outputs,
    tell_batch,
)
from embstore.device.runtime import COMPUTE, DOWN, Adopted, Argument, DeviceArray
from embstore.device.slabs import Located, SlabRows, Slabs
from embstore.device.staging import PIECE_BYTES, Buffer
from embstore.device.values import (
    Answer,
    Batch,
    Gradients,
    IndexArrays,
    PoolUpdate,
    Slots,
    TableParameters,
)
from embstore.layout import Layout

_VICTIM_BYTES = 16 << 20
"""Bytes of rows that are logged at once; storage packs and writes smaller pieces concurrently."""

_Launch = tuple[Any, ...]


class GpuRows:
    """The `DeviceRows` of a GPU."""

    look_up_keys_max = 1 << 31

    def __init__(self, work: GpuWork) -> None:
        self._work = work

    # Rows of a call

    def gather(
        self,
        rows: SlabRows,
        slots: DeviceArray,
        batch: Batch,
        dim: int,
        outs: Sequence[Rows | DeviceArray],
    ) -> None:
        if batch.position_count:
            outputs = Outputs(self._work, outs, dim)
            addresses = [out.address for out in outputs.placed]
            bounds, d_addresses = self._work.send_numbers(batch.bounds.tolist(), addresses)
            self._gather(rows, slots, batch.inverse, bounds, dim, outputs, d_addresses, NULL)
            outputs.fill()

    def look_up(
        self,
        memory: Slabs,
        index: IndexArrays,
        segments: Sequence[tuple[int, int, Keys]],
        outs: Sequence[Rows | DeviceArray],
        dim: int,
        clock: int,
        counting: int,
        moves: int,
    ) -> int:
        work, rows = self._work, memory.rows
        outputs = Outputs(work, outs, dim)
        call = owned(work, named(work, segments, [out.address for out in outputs.placed]))
        slots, findings = locate(work, memory, index, call, moves), call.findings
        if clock:
            work.launch(
                "touch_once", len(slots), *rows.arguments, slots, np.int64(len(slots)),
                np.int64(clock), np.int32(counting), findings,
            )  # fmt: skip
        self._gather(rows, NULL, slots, call.bounds, dim, outputs, call.more[0], findings)
        answer = outputs.begin(findings)
        work.wait()
        found = unpack_from(FINDINGS_FORMAT, answer.memory.data)
        if found[MISSING]:
            work.staging.end_small(answer, 0, [])  # no outputs follow the findings
            return -1
        memory.located = Located(moves, call.tables, call.keys, slots)
        outputs.end(answer)
        return int(found[UNIQUE_COUNT])

    def _gather(
        self,
        rows: SlabRows,
        slots: Argument,
        ids: DeviceArray,
        bounds: DeviceArray,
        dim: int,
        outputs: Outputs,
        addresses: DeviceArray,
        findings: Argument,
    ) -> None:
        """Queue the gather of the rows of ids. `slots` are the slots by id; if NULL, ids are
        slots."""
        n = len(ids)
        self._work.launch(
            "gather", n * LANES, *rows.arguments, slots, ids, bounds, addresses,
            np.int32(len(addresses)), np.int64(n), np.int32(dim), findings, outputs.answer,
        )  # fmt: skip

    def gather_pooled(
        self,
        rows: SlabRows,
        slots: DeviceArray,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows | DeviceArray,
    ) -> None:
        if len(out):
            outputs = Outputs(self._work, [out], _dim_of(out))
            self._gather_pooled(rows, slots, batch, offsets, mean, weights, outputs, NULL)
            outputs.fill()

    def begin_gather_pooled(
        self,
        rows: SlabRows,
        slots: DeviceArray,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        out: Rows | DeviceArray,
    ) -> Callable[[], None] | None:
        assert isinstance(batch, GpuBatch)
        if batch.findings is None or not len(out):
            return None
        outputs = Outputs(self._work, [out], _dim_of(out))
        findings = batch.findings
        self._gather_pooled(rows, slots, batch, offsets, mean, weights, outputs, findings)
        batch.is_known, batch.answer = False, outputs.begin(findings)
        return partial(outputs.end, batch.answer)

    def _gather_pooled(
        self,
        rows: SlabRows,
        slots: DeviceArray,
        batch: Batch,
        offsets: NDArray[np.int64],
        mean: bool,
        weights: NDArray[np.float32] | None,
        outputs: Outputs,
        findings: Argument,
    ) -> None:
        (d_out,), bags = outputs.placed, len(offsets) - 1
        d_offsets = self._work.upload(offsets)
        d_weights = self._work.upload(weights) if weights is not None and len(weights) else NULL
        self._work.launch(
            "gather_pooled", bags * LANES, *rows.arguments, slots, batch.inverse, d_offsets,
            np.int64(bags), np.int32(mean), d_weights, d_out, np.int32(d_out.width), findings,
            outputs.answer,
        )  # fmt: skip

    def sum_by_key(
        self, batch: Batch, gradients: Sequence[Gradients], scale: np.float32, sums: DeviceArray
    ) -> None:
        if batch.position_count:
            summed(self._work, batch, gradients, scale, sums, sums.width, keeps_all=True)

    def begin_update(self, parts: Sequence[PoolUpdate]) -> Answer[bool] | None:
        work, staging = self._work, self._work.staging
        named = [part for part in parts if part.batch.position_count]
        sums = [
            summed(work, p.batch, p.gradients, p.scale, p.sums, p.dim, keeps_all=False)
            for p in named
        ]
        gates = [own.findings.address for own in sums]
        updates = [self._update(part, own, gates) for part, own in zip(named, sums, strict=True)]
        answers = [staging.begin_small(own.findings.view(np.uint8)) for own in sums]
        mark = work.runtime.mark(COMPUTE)  # after all arrays that were sent
        for update in updates:
            work.launch(*update)
        if any(_is_callers(own.rows) for part in named for own in part.gradients):
            mark = work.runtime.mark(COMPUTE)  # the caller may change its gradients after the call
        work.runtime.submit()

        def answer() -> bool:
            work.wait_for(mark)
            for part, buffer in zip(named, answers, strict=True):
                assert isinstance(part.batch, GpuBatch)
                tell_batch(part.batch, buffer)
                staging.end_small(buffer, 0, [])
            found = [part.batch.found for part in named]
            return all(f.missing == 0 and f.outside < 0 and f.large < 0 for f in found)

        return answer

    def _update(self, part: PoolUpdate, summed: Summed, gates: Sequence[int]) -> _Launch:
        """Return the launch that applies the sums of one part of an update. Its kernel checks
        `gates`, the addresses of the findings of all parts, and does nothing if a part is
        invalid."""
        (call,) = self._work.send_numbers([
            part.clock, part.counting, summed.findings.address, summed.starts.address,
            summed.positions.address, summed.of_segments.address, summed.segments,
            int(part.scale.view(np.uint32)), len(gates), *gates,
        ])  # fmt: skip
        keys, n = part.batch.unique_keys, part.batch.position_count
        return self._applied(
            part.kind, part.memory, part.slots, keys, part.sums, part.dim, n, part.parameters,
            call,
        )  # fmt: skip

    def apply(
        self,
        kind: str,
        memory: Slabs,
        slots: DeviceArray,
        keys: DeviceArray,
        sums: DeviceArray,
        parameters: TableParameters,
    ) -> None:
        n = len(keys)
        if n:
            update = self._applied(kind, memory, slots, keys, sums, sums.width, n, parameters, NULL)
            self._work.launch(*update)
            self._work.runtime.submit()

    def _applied(
        self,
        kind: str,
        memory: Slabs,
        slots: DeviceArray,
        keys: DeviceArray,
        sums: DeviceArray,
        dim: int,
        n: int,
        parameters: TableParameters,
        call: Argument,
    ) -> _Launch:
        """Return the launch of an optimizer over n rows. If `call` is not NULL, only rows whose
        slots were found are updated."""
        d_scalars = self._work.send_changed((kind, dim), parameters.scalars)
        return (
            f"apply_{kind}", n * LANES, *memory.rows.arguments, slots, keys,
            np.int64(parameters.key_mask), sums, np.int32(dim), d_scalars, np.int64(n), call,
        )  # fmt: skip

    # To and from the host

    def scatter_rows(self, source: Rows, rows: SlabRows, slots: Slots) -> None:
        staging = self._work.staging
        staged = staging.staged(source)
        if len(source) == 0:
            return
        if staged is not None:
            self._scatter_piece(staged, len(source), rows, slots)
            return
        step = max(1, PIECE_BYTES // rows.layout.row_bytes)
        for low in range(0, len(source), step):
            part = source[low : low + step]
            buffer = staging.begin_rows(part.nbytes)
            staging.fill(part, buffer)
            self._scatter_piece(buffer, len(part), rows, slots[low : low + step])

    def _scatter_piece(self, buffer: Buffer, count: int, rows: SlabRows, slots: Slots) -> None:
        """Queue the copy of a buffer of rows, and then the kernel that scatters them."""
        d_source = self._work.staging.send_rows(buffer, count * rows.layout.row_bytes).view(
            rows.layout.element
        )
        (d_slots,) = self._work.send(slots)
        self._work.launch(
            "scatter_rows", count * LANES, d_source, *rows.arguments, d_slots, np.int64(count)
        )
        buffer.mark = self._work.runtime.mark(COMPUTE)

    def initialize(
        self, rows: SlabRows, slots: Slots, keys: Keys, parameters: TableParameters, layout: Layout
    ) -> None:
        n = len(slots)
        if n == 0:
            return
        d_slots, d_keys, d_kinds, d_values, d_seeds, d_initial_state = self._work.send(
            slots, keys, parameters.initializer_kinds, parameters.initializer_values,
            parameters.seeds, parameters.initial_state,
        )  # fmt: skip
        self._work.launch(
            "initialize", n * LANES, *rows.arguments, d_slots, d_keys,
            np.int64(parameters.key_mask), np.int64(n), d_kinds, d_values, d_seeds,
            d_initial_state, np.int32(layout.dim), np.int32(layout.state_dim),
        )  # fmt: skip

    def gather_rows(self, rows: SlabRows, slots: DeviceArray, out: SlabRows, first: int) -> None:
        self._gather_rows(rows, slots, out.owner[first : first + len(slots)])

    def _gather_rows(self, rows: SlabRows, slots: DeviceArray, out: DeviceArray) -> None:
        n = len(slots)
        if n:
            self._work.launch("gather_rows", n * LANES, *rows.arguments, slots, np.int64(n), out)

    def copy_slots(self, rows: SlabRows, slots: Slots, targets: SlabRows, places: Slots) -> None:
        n = len(slots)
        if n:
            d_slots, d_places = self._work.send(slots, places)
            table, shift, _ = targets.arguments
            self._work.launch(
                "copy_slots", n * LANES, *rows.arguments, d_slots, table, shift, d_places,
                np.int64(n),
            )  # fmt: skip

    def read_rows(self, rows: SlabRows, slots: DeviceArray | Slots) -> Rows:
        d_rows = self._work.scratch.take(len(slots), rows.layout.element, width=rows.layout.stride)
        self._gather_rows(rows, self._work.resident(slots), d_rows)
        return self._work.download(d_rows)

    def row_pieces(self, rows: SlabRows, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        step = max(1, _VICTIM_BYTES // rows.layout.row_bytes)
        pieces = [slice(low, min(low + step, len(slots))) for low in range(0, len(slots), step)]
        following = self._begin_piece(rows, slots[pieces[0]]) if pieces else None
        for number, piece in enumerate(pieces):
            buffer, following = following, None
            if number + 1 < len(pieces):
                following = self._begin_piece(rows, slots[pieces[number + 1]])
            count = piece.stop - piece.start
            assert buffer is not None
            self._work.runtime.wait(buffer.mark)
            yield piece, buffer.rows(count, rows.layout), np.arange(count)

    def _begin_piece(self, rows: SlabRows, slots: Slots) -> Buffer:
        d_rows = self._work.scratch.take(len(slots), rows.layout.element, width=rows.layout.stride)
        self._gather_rows(rows, self._work.upload(slots), d_rows)
        self._work.runtime.follow(DOWN, self._work.runtime.mark(COMPUTE))
        buffer = self._work.staging.begin_download(d_rows)
        self._work.runtime.follow(COMPUTE, buffer.mark)  # d_rows will be used again
        return buffer


def _dim_of(out: Rows | DeviceArray) -> int:
    return out.width if isinstance(out, DeviceArray) else out.shape[1]


def _is_callers(array: Any) -> bool:
    return isinstance(array, DeviceArray) and isinstance(array.owner, Adopted)

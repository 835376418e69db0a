"""A GPU: what is launched for each verb of the Device protocol, and with what.

The kernels are the `.cu` files of `embstore/kernels`; each tells its formula, and every line here
is about the order of work and where its arrays are. Work is given to the runtime (`runtime.py`) and
not waited for; the host waits where the protocol says that something is known, once a call when
nothing is missing.

    a call       unique, probe (, sum_by_key) ... settle: the one wait ... gather or apply
    its misses   read_slots of the victims, their rows down; rows up, piece by piece, insert: waits

Kernels launched before `settle` read how many unique keys there are from the device's memory. What
they find out is one row of eight int64 for each batch, its **findings** (`common.cuh`).

Memory. Slots are slabs (`slabs.py`), the index and they are all that is held for long; what a call
needs is scratch (`scratch.py`): some 100 bytes a key, and its rows, gradients and sums. Host arrays travel through pinned buffers (`staging.py`).

Grids: a block for every 256 items, or lanes of rows, but no more than keep the device busy; kernels
walk over the rest. Several tables of a pool cost one launch of each kernel, not one each.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.arrays import KEY_BITS, Keys, Rows
from embstore.device.base import (
    Batch,
    Counts,
    Gradients,
    IndexArrays,
    SlotContents,
    Slots,
    TableParameters,
)
from embstore.device.runtime import (
    BLOCK_THREADS,
    COMPUTE,
    DOWN,
    Argument,
    DeviceArray,
    Runtime,
)
from embstore.device.scratch import Scratch
from embstore.device.slabs import FLAT_SHIFT, SlabRows, Slabs
from embstore.device.staging import LARGE_BYTES, PIECE_BYTES, Buffer, Staging
from embstore.device.threshold import find_threshold
from embstore.device.workers import COPY_THREADS_MAX, Workers
from embstore.errors import CapacityError
from embstore.kernels.select_victims import BINS
from embstore.kernels.sources import VERBS

RESERVE_BYTES = 2 << 30
"""Memory beside the cache: a lookup and an update of a million keys and rows of 128 fp32 on the
host take three quarters of it."""
STASH_KEYS = 256
BUCKET_WIDTH = 8
_BLOCKS_PER_MULTIPROCESSOR = 16
_LANES = 32
_DIGIT_BITS, _TILE = 8, 8 * BLOCK_THREADS
"""Of a pass of the sort, and the items of a block of it; `group.cu` has the same."""
_RANGE_SLOTS = 4096
_SLOTS_READ_MAX = 1 << 20
_VICTIM_BYTES = 16 << 20
"""Of rows on their way to the log: storage packs and writes them in smaller pieces, beside each
other."""
_ALIGNMENT = 16
_NONE = (1 << 63) - 1
_UNIQUE_COUNT, _OUTSIDE, _MISSING, _NOT_FINITE, _ACCESSES, _HITS, _REFUSED = range(7)
_NOTHING_FOUND = np.array([0, _NONE, 0, _NONE, 0, 0, 0, 0], np.int64)
_NULL = np.uint64(0)
_PLAIN, _WEIGHTED, _DIVIDED = 0, 1, 2


@dataclass
class GpuBatch(Batch):
    """A batch, and where its kernels leave what they find out; None where it has no key."""

    findings: DeviceArray | None = field(default=None)


class GpuDevice:
    """The Device protocol on a GPU. One thread calls it at a time.

    Parameters
    ----------
    threads : that fill and empty pinned buffers, the caller included; None: one a core, at most 8
    """

    keeps_batches = False

    def __init__(self, runtime: Runtime, threads: int | None = None) -> None:
        self.runtime = runtime
        self.name = runtime.name
        self._scratch = Scratch(runtime)
        self._workers = Workers(threads or min(COPY_THREADS_MAX, os.cpu_count() or 1))
        self._staging = Staging(runtime, self._workers)
        self._blocks_max = runtime.facts()["multiprocessors"] * _BLOCKS_PER_MULTIPROCESSOR
        self._waiting_rows: dict[int, Buffer] = {}

    @property
    def is_lost(self) -> bool:
        return self.runtime.is_lost

    def facts(self) -> dict[str, Any]:
        """Return the runtime's facts, and the bytes of scratch memory."""
        return self.runtime.facts() | {"scratch_bytes": self._scratch.allocated_bytes}

    def warm_up(self) -> None:
        """Compile every kernel."""
        self.runtime.compile(VERBS)

    def close(self) -> None:
        """End the threads, and wait for all work. Arrays that were handed out stay valid."""
        self._workers.close()
        self._scratch.clear()
        self.runtime.close()

    # -- memory ------------------------------------------------------------------------------------

    def check_budget(self, cache_bytes: int, held_bytes: int) -> None:
        facts = self.runtime.facts()
        free = facts["memory_free_bytes"] + held_bytes + self._scratch.allocated_bytes
        if cache_bytes + RESERVE_BYTES > free:
            raise CapacityError(
                f"cache_bytes is {cache_bytes}; {self.name} has {free} bytes for the cache and "
                f"{RESERVE_BYTES} kept for calls, of {facts['memory_bytes']} in all: give "
                f"{max(free - RESERVE_BYTES, 0)} or less"
            )

    def slab_slots(self, wanted: int) -> int:
        return 1 << (wanted.bit_length() - 1)

    def allocate_slots(self, stride: int) -> Slabs:
        return Slabs(self.runtime, SlabRows(self.runtime.allocate(16, np.uint64), 0, stride))

    def reserve_slots(
        self, memory: Slabs, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        memory.reserve(slab_slots)

    def add_slots(self, memory: Slabs, low: int, high: int) -> None:
        if high == low:
            return
        memory.add((high - low) >> memory.rows.shift)
        self._launch(
            "clear_range", high - low, *memory.rows.arguments, np.int64(low), np.int64(high)
        )

    def drop_slots(self, memory: Slabs, low: int, high: int) -> None:
        if self.is_lost:
            return
        self.wait()
        memory.drop((high - low) >> memory.rows.shift)

    def allocate(self, count: int, dtype: DTypeLike, *, width: int | None = None) -> DeviceArray:
        return self._scratch.take(count, dtype, width=width or 1)

    def allocate_rows(self, count: int, stride: int) -> SlabRows:
        memory = self._scratch.take(count, np.float32, width=stride)
        (table,) = self._send(np.array([memory.address], np.uint64))
        return SlabRows(table, FLAT_SHIFT, stride, memory)

    def allocate_index(self, slot_count: int) -> IndexArrays:
        places = _bucket_count(slot_count) * BUCKET_WIDTH
        arrays = IndexArrays(
            bucket_keys=self.runtime.allocate(places, np.int64),
            bucket_slots=self.runtime.allocate(places, np.uint32),
            stash_keys=self.runtime.allocate(STASH_KEYS, np.int64),
            stash_slots=self.runtime.allocate(STASH_KEYS, np.uint32),
            stash_count=self.runtime.allocate(1, np.int64),
        )
        self.runtime.fill(arrays.bucket_keys, 0xFF)  # EMPTY_KEY
        self.runtime.fill(arrays.stash_keys, 0xFF)
        self.runtime.fill(arrays.stash_count, 0)
        return arrays

    def index_bytes(self, slot_count: int) -> int:
        return _bucket_count(slot_count) * BUCKET_WIDTH * 12 + STASH_KEYS * 12 + 8

    def upload(self, array: NDArray[Any]) -> DeviceArray:
        width = array.shape[1] if array.ndim == 2 else 1
        target = self._scratch.take(len(array), array.dtype, width=width)
        if len(target):
            self._send_one(array, target)
        return target

    def download(self, array: DeviceArray | NDArray[Any]) -> NDArray[Any]:
        if isinstance(array, np.ndarray):
            return array
        shape = (array.count, array.width) if array.width > 1 else array.count
        out = np.empty(shape, array.dtype)
        if out.size:
            self._staging.download(array, [out])
        return out

    def download_into(self, array: DeviceArray, outs: Sequence[NDArray[Any]]) -> None:
        """Copy an array into host arrays, one after the other, and wait."""
        self._staging.download(array, outs)

    def adopt(self, array: Any, dtype: DTypeLike) -> DeviceArray | None:
        if not hasattr(array, "__cuda_array_interface__"):
            return None
        return self.runtime.adopt(array, dtype)

    # -- keys --------------------------------------------------------------------------------------

    def unique(self, segments: Sequence[tuple[int, int, Keys]]) -> GpuBatch:
        bounds = np.cumsum([0, *(len(keys) for _, _, keys in segments)])
        n = int(bounds[-1])
        batch = GpuBatch(
            unique_keys=self._scratch.take(n, np.int64),
            inverse=self._scratch.take(n, np.int32),
            bounds=bounds,
        )
        if n == 0:
            return batch
        prefixes = np.array([table_id << KEY_BITS for table_id, _, _ in segments], np.int64)
        row_counts = np.array([rows for _, rows, _ in segments], np.int64)
        d_bounds, d_prefixes, d_row_counts, batch.findings = self._send(
            bounds, prefixes, row_counts, _NOTHING_FOUND
        )
        d_keys = self._scratch.take(n, np.int64)
        self._send_parts([keys for _, _, keys in segments], d_keys)
        place_count = 1 << (2 * n - 1).bit_length()
        table_keys = self._scratch.take(place_count, np.int64)
        table_firsts = self._scratch.take(place_count, np.int32)
        table_ids = self._scratch.take(place_count, np.int32)
        places = self._scratch.take(n, np.uint32)
        ranks = self._scratch.take(n, np.int32)
        self.runtime.fill(table_keys, 0xFF)  # EMPTY_KEY
        self.runtime.fill(table_firsts, 0x7F)  # above every position
        self._launch(
            "unique_enter", n, d_keys, d_bounds, d_prefixes, d_row_counts,
            np.int32(len(segments)), np.int64(n), table_keys, table_firsts, np.int64(place_count),
            places, batch.findings,
        )  # fmt: skip
        self._launch("unique_first", n, table_firsts, places, np.int64(n), ranks)
        self.runtime.accumulate(ranks, ranks)
        self._launch(
            "unique_number", n, table_keys, table_firsts, places, ranks, np.int64(n), table_ids,
            batch.unique_keys, batch.findings,
        )  # fmt: skip
        self._launch("unique_inverse", n, table_ids, places, np.int64(n), batch.inverse)
        return batch

    def probe(self, index: IndexArrays, batch: Batch, slots: DeviceArray) -> None:
        findings = _findings_of(batch)
        if findings is not None:
            n = batch.position_count
            self._launch(
                "probe", n, *_index(index), batch.unique_keys, findings[_UNIQUE_COUNT:1],
                np.int64(n), slots, findings,
            )  # fmt: skip

    def settle(self, batch: Batch) -> None:
        findings = _findings_of(batch)
        if findings is None:
            return
        told = self.download(findings).tolist()
        batch.unique_keys = batch.unique_keys[: told[_UNIQUE_COUNT]]
        batch.found.outside = _position(told[_OUTSIDE])
        batch.found.missing = told[_MISSING]
        batch.found.not_finite = _position(told[_NOT_FINITE])

    def find(self, index: IndexArrays, keys: DeviceArray, slots: DeviceArray) -> int:
        n = len(keys)
        if n == 0:
            return 0
        (findings,) = self._send(_NOTHING_FOUND)
        self._launch("probe", n, *_index(index), keys, _NULL, np.int64(n), slots, findings)
        return int(self.download(findings)[_MISSING])

    def absent(self, keys: DeviceArray, slots: DeviceArray, missing: int) -> tuple[Slots, Keys]:
        if missing == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        n = len(keys)
        ranks = self._scratch.take(n, np.int32)
        places = self._scratch.take(missing, np.int64)
        d_keys = self._scratch.take(missing, np.int64)
        self._launch("flag_absent", n, slots, np.int64(n), ranks)
        self.runtime.accumulate(ranks, ranks)
        self._launch("take_absent", n, slots, keys, ranks, np.int64(n), places, d_keys)
        return self.download(places), self.download(d_keys)

    def set_slots(self, slots: DeviceArray, places: Slots, values: Slots) -> None:
        n = len(places)
        if n:
            d_places, d_values = self._send(places.astype(np.int32), values)
            self._launch("put_slots", n, slots, d_places, d_values, np.int64(n))

    def count_accesses(
        self, batch: Batch, slots: DeviceArray, low: int, high: int, counts: Counts | None
    ) -> tuple[int, int]:
        n = batch.position_count
        if n == 0:
            return 0, 0
        (findings,) = self._send(_NOTHING_FOUND)
        self._launch(
            "count_accesses", n, batch.inverse, np.int64(n), slots, np.int64(low), np.int64(high),
            _NULL if counts is None else self.upload(counts), findings,
        )  # fmt: skip
        told = self.download(findings)
        return int(told[_ACCESSES]), int(told[_HITS])

    # -- rows of a call ----------------------------------------------------------------------------

    def gather(
        self,
        rows: SlabRows,
        slots: DeviceArray,
        batch: Batch,
        dim: int,
        outs: Sequence[Rows | DeviceArray],
    ) -> None:
        n = batch.position_count
        if n == 0:
            return
        with _Outputs(self, outs, dim) as d_outs:
            addresses = np.array([out.address for out in d_outs], np.uint64)
            d_bounds, d_addresses = self._send(batch.bounds, addresses)
            self._launch(
                "gather", n * _LANES, *rows.arguments, slots, batch.inverse, d_bounds, d_addresses,
                np.int32(len(outs)), np.int64(n), np.int32(dim),
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
        bags = len(offsets) - 1
        if bags == 0:
            return
        dim = out.width if isinstance(out, DeviceArray) else out.shape[1]
        with _Outputs(self, [out], dim) as (d_out,):
            d_offsets = self.upload(offsets)
            d_weights = self.upload(weights) if weights is not None and len(weights) else _NULL
            self._launch(
                "gather_pooled", bags * _LANES, *rows.arguments, slots, batch.inverse, d_offsets,
                np.int64(bags), np.int32(mean), d_weights, d_out, np.int32(dim),
            )  # fmt: skip

    def sum_by_key(
        self,
        batch: Batch,
        gradients: Sequence[Gradients],
        scale: np.float32,
        sums: DeviceArray,
    ) -> None:
        findings, n, dim = _findings_of(batch), batch.position_count, np.int32(sums.width)
        if findings is None:
            return
        starts, positions = self._group(batch, findings)
        kept = [self._gradients(part) for part in gradients]
        columns = np.array([[_address(a) for a in arrays] for arrays in kept], np.uint64)
        d_bounds, d_rows, d_sources, d_coefficients, d_forms = self._send(
            batch.bounds,
            *np.ascontiguousarray(columns.T),
            np.array([*map(_form, gradients)], np.int32),
        )
        of_segments = (d_bounds, d_rows, d_sources, d_coefficients, d_forms)
        count = np.int32(len(gradients))
        extra = self._scratch.take(n, np.int32)
        more = self._scratch.take(n // 64 + 1, np.float32, width=int(dim))
        self._launch(
            "sum_first", n * _LANES, starts, positions, *of_segments, count, scale, sums, dim,
            findings,
        )  # fmt: skip
        self._launch("count_chunks", n, starts, np.int64(n), findings, extra)
        self.runtime.accumulate(extra, extra)
        self._launch(
            "sum_more", len(more) * _LANES, starts, positions, *of_segments, count, extra,
            findings, more, dim,
        )  # fmt: skip
        self._launch("sum_last", n * _LANES, extra, sums, more, scale, dim, findings)

    def _group(self, batch: Batch, findings: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return positions by id: those of id are positions[starts[id]:starts[id + 1]]."""
        n, take = batch.position_count, self._scratch.take
        tiles = -(-n // _TILE)
        ends = take(tiles << _DIGIT_BITS, np.int32)
        unsorted: tuple[Argument, Argument] = (batch.inverse, _NULL)
        for shift in range(0, max((n - 1).bit_length(), 1), _DIGIT_BITS):
            ids, positions = take(n, np.int32), take(n, np.int32)
            digit = (np.int64(n), np.int32(shift))
            self._launch("count_digits", tiles * BLOCK_THREADS, unsorted[0], *digit, ends)
            self.runtime.accumulate(ends, ends)
            self._launch(
                "scatter_digits", tiles * BLOCK_THREADS, *unsorted, *digit, ends, ids, positions
            )
            unsorted = ids, positions
        starts = take(n + 1, np.int64)
        self._launch("group_starts", n, ids, np.int64(n), findings, starts)
        return starts, positions

    def _gradients(self, gradients: Gradients) -> tuple[DeviceArray | None, ...]:
        """Return the arrays of a segment's gradients in the device's memory."""
        arrays = (gradients.rows, gradients.source, gradients.coefficients)
        return tuple(None if a is None or not len(a) else self._resident(a) for a in arrays)

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
        if n == 0:
            return
        scalars = self.upload(parameters.scalars)
        self._launch(
            f"apply_{kind}", n * _LANES, *memory.rows.arguments, slots, keys, sums,
            np.int32(sums.width), scalars, np.int64(n),
        )  # fmt: skip

    # -- rows and the host -------------------------------------------------------------------------

    def staging(self, count: int, stride: int) -> Rows:
        buffer = self._staging.begin_rows(count * stride * 4)
        rows = buffer.memory[: count * stride * 4].view(np.float32).reshape(count, stride)
        self._waiting_rows = {rows.ctypes.data: buffer}
        return rows

    def scatter_rows(self, source: Rows, rows: SlabRows, slots: Slots) -> None:
        buffer = self._waiting_rows.pop(source.ctypes.data, None)
        if len(source) == 0:
            return
        if buffer is not None:
            self._scatter_piece(buffer, len(source), rows, slots)
            return
        step = max(1, PIECE_BYTES // (4 * rows.stride))
        for low in range(0, len(source), step):
            part = source[low : low + step]
            buffer = self._staging.begin_rows(part.nbytes)
            self._staging.fill(part, buffer)
            self._scatter_piece(buffer, len(part), rows, slots[low : low + step])

    def _scatter_piece(self, buffer: Buffer, count: int, rows: SlabRows, slots: Slots) -> None:
        """Send a buffer of rows on its way, and have them scattered when they are there."""
        d_source = self._staging.send_rows(buffer, count * rows.stride * 4).view(np.float32)
        (d_slots,) = self._send(slots)
        self._launch(
            "scatter_rows", count * _LANES, d_source, *rows.arguments, d_slots, np.int64(count)
        )
        buffer.mark = self.runtime.mark(COMPUTE)

    def initialize(
        self,
        rows: SlabRows,
        slots: Slots,
        keys: Keys,
        parameters: TableParameters,
        dim: int,
        state_dim: int,
    ) -> None:
        n = len(slots)
        if n == 0:
            return
        d_slots, d_keys, d_kinds, d_values, d_seeds, d_initial_state = self._send(
            slots, keys, parameters.initializer_kinds, parameters.initializer_values,
            parameters.seeds, parameters.initial_state,
        )  # fmt: skip
        self._launch(
            "initialize", n * _LANES, *rows.arguments, d_slots, d_keys, np.int64(n), d_kinds,
            d_values, d_seeds, d_initial_state, np.int32(dim), np.int32(state_dim),
        )  # fmt: skip

    def gather_rows(self, rows: SlabRows, slots: DeviceArray, out: SlabRows, first: int) -> None:
        self._gather_rows(rows, slots, out.owner[first : first + len(slots)])

    def _gather_rows(self, rows: SlabRows, slots: DeviceArray, out: DeviceArray) -> None:
        n = len(slots)
        if n:
            self._launch("gather_rows", n * _LANES, *rows.arguments, slots, np.int64(n), out)

    def read_rows(self, rows: SlabRows, slots: DeviceArray | Slots) -> Rows:
        d_rows = self._scratch.take(len(slots), np.float32, width=rows.stride)
        self._gather_rows(rows, self._resident(slots), d_rows)
        return self.download(d_rows)

    def row_pieces(self, rows: SlabRows, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        step = max(1, _VICTIM_BYTES // (4 * rows.stride))
        pieces = [slice(low, min(low + step, len(slots))) for low in range(0, len(slots), step)]
        following = self._begin_piece(rows, slots[pieces[0]]) if pieces else None
        for number, piece in enumerate(pieces):
            buffer, following = following, None
            if number + 1 < len(pieces):
                following = self._begin_piece(rows, slots[pieces[number + 1]])
            count = piece.stop - piece.start
            assert buffer is not None
            self.runtime.wait(buffer.mark)
            host = buffer.memory[: count * rows.stride * 4].view(np.float32)
            yield piece, host.reshape(count, rows.stride), np.arange(count)

    def _begin_piece(self, rows: SlabRows, slots: Slots) -> Buffer:
        d_rows = self._scratch.take(len(slots), np.float32, width=rows.stride)
        self._gather_rows(rows, self.upload(slots), d_rows)
        self.runtime.follow(DOWN, self.runtime.mark(COMPUTE))
        buffer = self._staging.begin_download(d_rows)
        self.runtime.follow(COMPUTE, buffer.mark)  # its memory is used again
        return buffer

    # -- slots -------------------------------------------------------------------------------------

    def insert(self, index: IndexArrays, keys: Keys, slots: Slots) -> bool:
        n = len(keys)
        if n == 0:
            return True
        d_keys, d_slots, findings, rest_count = self._send(
            keys, slots, _NOTHING_FOUND, np.zeros(1, np.int64)
        )
        rest = self._scratch.take(n, np.int64)
        self._launch("insert", n, *_index(index), d_keys, d_slots, np.int64(n), rest, rest_count)
        self._launch("insert_rest", 1, *_index(index), d_keys, d_slots, rest, rest_count, findings)
        return not self.download(findings)[_REFUSED]

    def insert_slots(self, index: IndexArrays, memory: Slabs, slot_count: int) -> bool:
        if slot_count == 0:
            return True
        findings, rest_count = self._send(_NOTHING_FOUND, np.zeros(1, np.int64))
        rest = self._scratch.take(slot_count, np.int64)
        self._launch(
            "insert_slots", slot_count, *_index(index), *memory.rows.arguments,
            np.int64(slot_count), rest, rest_count,
        )  # fmt: skip
        self._launch(
            "insert_slots_rest", 1, *_index(index), *memory.rows.arguments, rest, rest_count,
            findings,
        )  # fmt: skip
        return not self.download(findings)[_REFUSED]

    def erase(self, index: IndexArrays, keys: Keys) -> None:
        n = len(keys)
        if n:
            d_keys, rest_count = self._send(keys, np.zeros(1, np.int64))
            rest = self._scratch.take(n, np.int64)
            self._launch("erase", n, *_index(index), d_keys, np.int64(n), rest, rest_count)
            self._launch("erase_rest", 1, *_index(index), d_keys, rest, rest_count)

    def place_keys(self, memory: Slabs, slots: Slots, keys: Keys) -> None:
        n = len(slots)
        if n:
            d_slots, d_keys = self._send(slots, keys)
            self._launch("place_keys", n, *memory.rows.arguments, d_slots, d_keys, np.int64(n))

    def clear_slots(self, memory: Slabs, slots: Slots) -> None:
        self._over_slots("clear_slots", memory, slots)

    def mark(self, memory: Slabs, slots: DeviceArray | Slots, *, dirty: bool) -> None:
        self._over_slots("mark_dirty" if dirty else "mark_clean", memory, slots)

    def _over_slots(self, kernel: str, memory: Slabs, slots: DeviceArray | Slots) -> None:
        n = len(slots)
        if n:
            self._launch(kernel, n, *memory.rows.arguments, self._resident(slots), np.int64(n))

    def read_slots(self, memory: Slabs, slots: Slots) -> SlotContents:
        n = len(slots)
        d_contents = self._contents(n)
        if n:
            d_slots = self.upload(slots)
            self._launch("read_slots", n, *memory.rows.arguments, d_slots, np.int64(n), *d_contents)
        return self._on_host(d_contents)

    def read_range(self, memory: Slabs, low: int, high: int) -> SlotContents:
        parts = [self._on_host(self._contents(0))]
        for begin in range(low, high, _SLOTS_READ_MAX):
            n = min(_SLOTS_READ_MAX, high - begin)
            bounds, d_contents = (np.int64(begin), np.int64(begin + n)), self._contents(n)
            self._launch("read_range", n, *memory.rows.arguments, *bounds, *d_contents)
            parts.append(self._on_host(d_contents))
        return SlotContents(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.dirty for part in parts]),
        )

    def _contents(self, n: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        take = self._scratch.take
        return take(n, np.int64), take(n, np.int64), take(n, np.uint8)

    def _on_host(self, d_contents: tuple[DeviceArray, DeviceArray, DeviceArray]) -> SlotContents:
        keys, scores, dirty = (self.download(array) for array in d_contents)
        return SlotContents(keys, scores, dirty.view(np.bool_))

    def touch(self, memory: Slabs, slots: DeviceArray | Slots, clock: int, *, lfu: bool) -> None:
        n = len(slots)
        if n:
            self._launch(
                "touch", n, *memory.rows.arguments, self._resident(slots), _NULL, np.int64(n),
                np.int64(clock), np.int32(lfu),
            )  # fmt: skip

    def age_scores(self, memory: Slabs, slot_count: int) -> None:
        if slot_count:
            self._launch("age_scores", slot_count, *memory.rows.arguments, np.int64(slot_count))

    def select_victims(
        self, memory: Slabs, slot_count: int, clock: int, count: int
    ) -> tuple[Slots, NDArray[np.int64]]:
        if slot_count == 0 or count == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        candidates = _Candidates(self, memory, slot_count, clock)
        wanted, threshold, ties = find_threshold(candidates, count)
        return candidates.collect(threshold, wanted, ties)

    # -- launches and copies -----------------------------------------------------------------------

    def _launch(self, kernel: str, items: int, *arguments: Argument) -> None:
        blocks = min(-(-items // BLOCK_THREADS), self._blocks_max)
        self.runtime.launch(kernel, blocks, *arguments)

    def wait(self) -> None:
        """Wait for all work."""
        self.runtime.wait(self.runtime.mark(COMPUTE))

    def _send(self, *arrays: NDArray[Any]) -> list[DeviceArray]:
        """Copy host arrays to the device in one piece, and return them there."""
        ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays])
        target = self._scratch.take(max(int(ends[-1]), 1), np.uint8)
        begins = [0, *ends[:-1].tolist()]

        def fill(memory: NDArray[np.uint8]) -> None:
            for array, begin in zip(arrays, begins, strict=True):
                memory[begin : begin + array.nbytes] = _bytes_of(array)

        self._staging.send(fill, target)
        return [
            target[begin : begin + array.nbytes].view(array.dtype)
            for array, begin in zip(arrays, begins, strict=True)
        ]

    def _send_parts(self, parts: Sequence[Any], target: DeviceArray) -> None:
        """Copy arrays one after the other into one of the device."""
        if all(isinstance(part, np.ndarray) for part in parts) and target.nbytes < LARGE_BYTES:
            self._staging.send(lambda memory: _fill(memory, parts), target)
            return
        low = 0
        for part in parts:
            if len(part):
                self._send_one(part, target[low : low + len(part)])
            low += len(part)

    def _send_one(self, source: NDArray[Any] | DeviceArray, target: DeviceArray) -> None:
        if isinstance(source, DeviceArray):
            self.runtime.copy(source, target)
        elif source.nbytes < LARGE_BYTES:
            self._staging.send(lambda memory: _fill(memory, [source]), target)
        else:
            self._staging.upload(source, target)

    def _resident(self, array: NDArray[Any] | DeviceArray) -> DeviceArray:
        """Return the array in the device's memory."""
        return array if isinstance(array, DeviceArray) else self.upload(array)


class _Outputs:
    """A call's outputs in the device's memory; at its end the host's are copied, and all are there."""

    def __init__(self, device: GpuDevice, outs: Sequence[Rows | DeviceArray], dim: int) -> None:
        self._device = device
        self._host_outs = [out for out in outs if not isinstance(out, DeviceArray)]
        count = sum(len(out) for out in self._host_outs)
        self._d_outs = device.allocate(count, np.float32, width=dim)
        low, self._placed = 0, []
        for out in outs:
            if isinstance(out, DeviceArray):
                self._placed.append(out)
            else:
                self._placed.append(self._d_outs[low : low + len(out)])
                low += len(out)

    def __enter__(self) -> list[DeviceArray]:
        return self._placed

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if len(self._d_outs):
            self._device.download_into(self._d_outs, self._host_outs)
        else:
            self._device.wait()  # what a caller's own stream does next is not ordered behind ours


@dataclass
class _Candidates:
    """`Scores` of the slots that a clock has not touched."""

    device: GpuDevice
    memory: Slabs
    slot_count: int
    clock: int

    @property
    def _slots(self) -> tuple[Argument, ...]:
        count, clock = np.int64(self.slot_count), np.int64(self.clock)
        return *self.memory.rows.arguments, count, clock

    def extent(self, floor: int, ceiling: int) -> tuple[int, int, int]:
        (result,) = self.device._send(np.array([0, ceiling, floor], np.int64))
        self.device._launch(
            "score_range", self.slot_count, *self._slots, np.int64(floor), np.int64(ceiling), result
        )
        count, lowest, highest = self.device.download(result).tolist()
        return count, lowest, highest

    def bins(self, floor: int, ceiling: int, shift: int) -> NDArray[np.int64]:
        bins = self.device.allocate(BINS, np.int64)
        self.device.runtime.fill(bins, 0)
        self.device._launch(
            "count_scores", self.slot_count, *self._slots, np.int64(floor), np.int64(ceiling),
            np.int32(shift), bins,
        )  # fmt: skip
        return self.device.download(bins)

    def collect(self, threshold: int, wanted: int, ties: int) -> tuple[Slots, NDArray[np.int64]]:
        """Return the victims, ascending, and their scores."""
        device, blocks = self.device, -(-self.slot_count // _RANGE_SLOTS)
        arguments = (*self._slots, np.int64(threshold), np.int64(_RANGE_SLOTS))
        below, at = device.allocate(blocks, np.int64), device.allocate(blocks, np.int64)
        device.runtime.launch("count_victims", blocks, *arguments, below, at)
        before = device._send(*(_exclusive(device.download(a)) for a in (below, at)))
        victims, scores = device.allocate(wanted, np.int64), device.allocate(wanted, np.int64)
        device.runtime.launch(
            "collect_victims", blocks, *arguments, *before, np.int64(ties), victims, scores
        )
        return device.download(victims), device.download(scores)


def _exclusive(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts


def _bucket_count(slot_count: int) -> int:
    return max(1, -(-3 * slot_count // (2 * BUCKET_WIDTH)))


def _index(index: IndexArrays) -> tuple[Argument, ...]:
    """Return the six parameters of an index."""
    buckets = np.int64(len(index.bucket_keys) // BUCKET_WIDTH)
    return (
        index.bucket_keys, index.bucket_slots, buckets, index.stash_keys, index.stash_slots,
        index.stash_count,
    )  # fmt: skip


def _findings_of(batch: Batch) -> DeviceArray | None:
    assert isinstance(batch, GpuBatch)
    return batch.findings


def _position(found: int) -> int:
    return -1 if found == _NONE else found


def _address(array: DeviceArray | None) -> int:
    return 0 if array is None else array.address


def _form(gradients: Gradients) -> int:
    if gradients.coefficients is None:
        return _PLAIN
    return _DIVIDED if gradients.divide else _WEIGHTED


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _fill(memory: NDArray[np.uint8], parts: Sequence[NDArray[Any]]) -> None:
    low = 0
    for part in parts:
        memory[low : low + part.nbytes] = _bytes_of(part)
        low += part.nbytes

"""Memory of a GPU. Slots and the index are long-lived allocations; calls use scratch memory.

A call needs some 100 bytes per key, and memory for its rows, gradients and sums (`scratch.py`).
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.arrays import Rows
from embstore.device.buckets import STASH_KEYS, bucket_count, index_bytes
from embstore.device.gpu_work import GpuWork
from embstore.device.runtime import DeviceArray
from embstore.device.shared import SharedArray
from embstore.device.slabs import (
    FLAT_SHIFT,
    METADATA_BYTES,
    PinnedSlabs,
    SlabRows,
    Slabs,
    allocated_bytes,
)
from embstore.device.values import Answer, IndexArrays
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.kernels.probe import BUCKET_WIDTH
from embstore.layout import Layout

RESERVE_BYTES = 2 << 30
"""Bytes of the GPU's memory that are reserved for calls, and not available to the cache. A lookup
and an update of a million keys, with 128 fp32 per row and arrays on the host, take three quarters
of these bytes."""


class GpuMemory:
    """The `DeviceMemory` of a GPU."""

    slab_bytes_max = 128 << 20
    slots_max = (1 << 31) - 1  # kernels count them in int32
    frees_parts = False
    staging_bytes_max = 16 << 20  # 16 threads read that much in half a millisecond
    _slabs: type[Slabs] = Slabs

    def __init__(self, work: GpuWork) -> None:
        self._work = work

    def cache_bytes_max(self) -> int:
        return max(self._free_bytes(self._work.runtime.facts()) - RESERVE_BYTES, 0)

    def check_budget(self, cache_bytes: int, used_bytes: int) -> None:
        facts = self._work.runtime.facts()
        free = self._free_bytes(facts) + used_bytes
        if cache_bytes + RESERVE_BYTES > free:
            raise CapacityError(
                f"cache_bytes is {cache_bytes}; {self._work.runtime.name} has {free} bytes for the "
                f"cache and {RESERVE_BYTES} kept for calls, of {facts['memory_bytes']} in all: "
                f"give {max(free - RESERVE_BYTES, 0)} or less"
            )

    def _free_bytes(self, facts: dict[str, Any]) -> int:
        return int(facts["memory_free_bytes"] + self._work.scratch.allocated_bytes)

    def secure(self, count: int) -> None:
        self._work.secure(count)

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        size = allocated_bytes(slab_slots * (row_bytes + METADATA_BYTES))
        return -(-size // slab_slots)

    def slab_slots(self, wanted: int) -> int:
        return 1 << (wanted.bit_length() - 1)

    def allocate_slots(self, layout: Layout) -> Slabs:
        table = self._work.scratch.plain(32, np.uint64)
        return self._slabs(self._work.runtime, self._work.scratch, SlabRows(table, 0, layout))

    def reserve_slots(
        self, memory: Slabs, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        memory.reserve(slab_slots)

    def add_slots(self, memory: Slabs, low: int, high: int) -> None:
        if high == low:
            return
        memory.add((high - low) >> memory.rows.shift)
        bounds = np.int64(low), np.int64(high)
        self._work.launch("clear_range", high - low, *memory.rows.arguments, *bounds)

    def drop_slots(self, memory: Slabs, low: int, high: int) -> None:
        if self._work.runtime.is_lost:
            return
        self._work.wait()
        memory.drop((high - low) >> memory.rows.shift)

    def allocate(self, count: int, dtype: DTypeLike, *, width: int | None = None) -> DeviceArray:
        return self._work.scratch.take(count, dtype, width=width or 1)

    def allocate_rows(self, count: int, layout: Layout) -> SlabRows:
        memory = self._work.scratch.take(count, layout.element, width=layout.stride)
        (table,) = self._work.send_numbers([memory.address])
        return SlabRows(table, FLAT_SHIFT, layout, memory)

    def allocate_index(self, slot_count: int) -> IndexArrays:
        places, plain = bucket_count(slot_count) * BUCKET_WIDTH, self._work.scratch.plain
        arrays = IndexArrays(
            bucket_keys=plain(places, np.int64),
            bucket_slots=plain(places, np.uint32),
            stash_keys=plain(STASH_KEYS, np.int64),
            stash_slots=plain(STASH_KEYS, np.uint32),
            stash_count=plain(1, np.int64),
        )
        self._work.runtime.fill(arrays.bucket_keys, 0xFF)  # EMPTY_KEY
        self._work.runtime.fill(arrays.stash_keys, 0xFF)
        self._work.runtime.fill(arrays.stash_count, 0)
        return arrays

    def index_bytes(self, slot_count: int) -> int:
        return index_bytes(slot_count)

    def upload(self, array: NDArray[Any]) -> DeviceArray:
        return self._work.upload(array)

    def download(self, array: DeviceArray | NDArray[Any]) -> NDArray[Any]:
        return self._work.download(array)

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        self._work.runtime.copy(source, target)

    def ask(self, array: DeviceArray) -> Answer[NDArray[Any]]:
        return self._work.ask(array)

    def staging(self, count: int, layout: Layout) -> Rows:
        return self._work.staging.stage(count, layout)

    def empty(self, count: int, width: int) -> Any:
        return self._work.runtime.empty(count, width)

    def adopt(
        self, array: Any, dtype: DTypeLike, dimensions: int, *, write: bool = False
    ) -> DeviceArray | None:
        try:
            interface = getattr(array, "__cuda_array_interface__", None)
        except Exception as exc:  # of its library: PyTorch raises for tensors with gradients
            raise InvalidArgumentError(f"expected an array that may be read: {exc}") from exc
        if interface is None:
            return None
        if len(interface["shape"]) != dimensions:
            raise InvalidArgumentError(
                f"expected an array of {dimensions} dimensions, found shape {interface['shape']}"
            )
        address, is_read_only = interface["data"]
        if address % np.dtype(dtype).itemsize or (write and is_read_only):
            raise InvalidArgumentError(
                "expected an aligned array"
                + (" that may be written" if write else "")
                + f", found one at {address:#x}"
                + (", read-only" if is_read_only else "")
            )
        if isinstance(array, SharedArray):
            return array.d_array if write else array.owned(self._work)
        if interface["version"] < 3 and hasattr(array, "__dlpack__"):
            self._have_waited_for(array)
        return self._work.runtime.adopt(array, dtype)

    def _have_waited_for(self, array: Any) -> None:
        """Make COMPUTE follow the stream that the array's library now uses in this thread.

        Only DLPack makes a given stream follow the stream of a library. PyTorch's
        `__cuda_array_interface__` names no stream, and tensors of PyTorch may be used in a side
        stream.
        """
        try:
            array.__dlpack__(stream=self._work.runtime.compute_stream)
        except Exception as exc:  # any error of a library
            raise InvalidArgumentError(
                f"expected an array that its library exports by DLPack: {exc}"
            ) from exc


class PinnedMemory(GpuMemory):
    """The `DeviceMemory` of level two: rows are in pinned host memory, all else as in `GpuMemory`.

    The sizes of its slots count only bytes of the host. Bytes of level two on the GPU count in
    level one's budget.
    """

    staging_bytes_max = 0
    _slabs = PinnedSlabs

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        return row_bytes

    def index_bytes(self, slot_count: int) -> int:
        return 0

"""Memory on the CPU: NumPy arrays. A device's array is a host array, so copies cost nothing.

Slots are arrays over reserved address space: a page takes memory when it is first written, and is
released when its slots are dropped (`embstore.host.memory`).
"""

import mmap
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.arrays import EMPTY_KEY, Keys, Rows
from embstore.device.buckets import KEY_BYTES, SLOT_BYTES, STASH_KEYS, bucket_count, index_bytes
from embstore.device.cpu_work import CpuWork
from embstore.device.values import Answer, Flags, IndexArrays
from embstore.errors import CapacityError
from embstore.host.facts import host_facts, swap_bytes
from embstore.host.memory import lengthened, move, release, reserve
from embstore.kernels.probe import BUCKET_WIDTH
from embstore.layout import Layout

METADATA_BYTES = 8 + 8 + 1
"""Bytes of a slot without its row: key, score and flag."""
_SHARED = mmap.PAGESIZE
"""When slots are dropped, the memory of this many slots after them is released too. The page in
which the dropped slots end may also contain slots that were dropped earlier, at most one per byte
of the page."""


@dataclass
class CpuSlotMemory:
    """`SlotMemory` as arrays by slot, whose address space is reserved for `slots_max` slots."""

    rows: Rows  # (slots_max, stride)
    keys: Keys  # (slots_max,)
    scores: NDArray[np.int64]  # (slots_max,)
    dirty: Flags  # (slots_max,)


class CpuMemory:
    """The `DeviceMemory` of the CPU."""

    slab_bytes_max = 16 << 20
    slots_max = sys.maxsize  # address space is exhausted earlier
    frees_parts = True
    staging_bytes_max = 4 << 20

    def __init__(self, work: CpuWork) -> None:
        self._work = work

    def cache_bytes_max(self) -> int:
        return int(host_facts()["memory_bytes"])

    def check_budget(self, cache_bytes: int, used_bytes: int) -> None:
        """Refuse a cache larger than memory and swap together. Memory is allocated page by page and
        may be swapped, but the system would at some time end a process that needs more than memory
        and swap."""
        most = self.cache_bytes_max() + swap_bytes()
        if cache_bytes > most:
            raise CapacityError(
                f"cache_bytes is {cache_bytes}; this host has {most} bytes of memory: give less"
            )

    def secure(self, count: int) -> None:
        """Reserve nothing: allocating host memory does not fail in the middle of a call."""

    def slot_bytes(self, slab_slots: int, row_bytes: int) -> int:
        return row_bytes + METADATA_BYTES

    def slab_slots(self, wanted: int) -> int:
        return wanted

    def allocate_slots(self, layout: Layout) -> CpuSlotMemory:
        return CpuSlotMemory(
            rows=self.allocate_rows(0, layout),
            keys=reserve(0).view(np.int64),
            scores=reserve(0).view(np.int64),
            dirty=reserve(0),
        )

    def reserve_slots(
        self, memory: CpuSlotMemory, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        if slots_max <= len(memory.keys):
            return
        longer = _reserved_rows(slots_max, memory.rows.shape[1], memory.rows.dtype)
        move(memory.rows[:slot_count], longer)
        memory.rows = longer
        self.reserve_metadata(memory, slot_count, slots_max)

    def reserve_metadata(self, memory: Any, slot_count: int, slots_max: int) -> None:
        """Prepare keys, scores and flags for up to `slots_max` slots."""
        if slots_max > len(memory.keys):
            memory.dirty = lengthened(memory.dirty, slot_count, slots_max)
            memory.scores = lengthened(memory.scores, slot_count, slots_max)
            memory.keys = lengthened(memory.keys, slot_count, slots_max)  # last: its length is used

    def add_slots(self, memory: CpuSlotMemory, low: int, high: int) -> None:
        memory.keys[low:high] = EMPTY_KEY
        memory.dirty[low:high] = 0

    def drop_slots(self, memory: CpuSlotMemory, low: int, high: int) -> None:
        release(memory.rows[low : high + _SHARED])
        self.drop_metadata(memory, low, high)

    def drop_metadata(self, memory: Any, low: int, high: int) -> None:
        """Free the memory of keys, scores and flags of the last slots [low, high)."""
        for array in (memory.dirty, memory.scores, memory.keys):
            release(array[low : high + _SHARED])

    def allocate(self, count: int, dtype: DTypeLike, *, width: int | None = None) -> NDArray[Any]:
        return np.empty(count if width is None else (count, width), dtype)

    def allocate_rows(self, count: int, layout: Layout) -> Rows:
        return _reserved_rows(count, layout.stride, layout.element)

    def allocate_index(self, slot_count: int) -> IndexArrays:
        shape = (bucket_count(slot_count), BUCKET_WIDTH)
        places = shape[0] * shape[1]
        keys = reserve(places * KEY_BYTES).view(np.int64).reshape(shape)
        slots = reserve(places * SLOT_BYTES).view(np.uint32).reshape(shape)
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

    def copy(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        target[:] = source

    def ask(self, array: NDArray[Any]) -> Answer[NDArray[Any]]:
        return array.copy

    def staging(self, count: int, layout: Layout) -> Rows:
        elements = self._work.take("staging", count * layout.stride, layout.element)
        return elements.reshape(count, layout.stride)

    def empty(self, count: int, width: int) -> Rows:
        return np.empty((count, width), np.float32)

    def adopt(self, array: Any, dtype: DTypeLike, dimensions: int, *, write: bool = False) -> None:
        """Return None: every array is on the host."""


def _reserved_rows(count: int, stride: int, element: np.dtype[Any]) -> Rows:
    return reserve(count * stride * element.itemsize).view(element).reshape(count, stride)

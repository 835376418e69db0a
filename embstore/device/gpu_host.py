"""The host as a device below a GPU: slots for rows that have left the GPU's.

Keys, scores and the index are the CPU's own, since the host decides which rows are where. The rows
are in pinned memory, in slabs that the GPU's kernels find by a table of addresses as they find
their own (`slabs.py`): `GpuRows.copy_slots` reads and writes them over the bus, in the order of all
its other work. So no copy is begun, waited for or staged. The host only reads rows that are to be
logged, when the GPU has done all that was queued.

A slab is allocated when rows need it, and freed when the device has done all queued work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.device.base import Flags, Slots
from embstore.device.cpu import CpuDevice
from embstore.device.cpu_memory import CpuMemory
from embstore.device.cpu_rows import CpuRows
from embstore.device.cpu_work import CpuWork
from embstore.device.gpu_work import GpuWork
from embstore.device.runtime import DeviceArray
from embstore.device.slabs import SlabRows, Slabs
from embstore.host.memory import reserve
from embstore.layout import Layout

_LOGGED_BYTES = 16 << 20
"""Of rows that are read at once."""


class PinnedSlabs(Slabs):
    """Slabs of rows alone, in memory of the host."""

    def _allocate(self, shift: int) -> DeviceArray:
        memory = self.runtime.allocate_host(self.rows.layout.row_bytes << shift)
        return DeviceArray(memory.ctypes.data, len(memory), np.uint8, memory)

    def _split(self, shift: int) -> None:
        raise AssertionError("the budget of a host tier does not change")


@dataclass
class HostSlots:
    """`SlotMemory` whose rows are the GPU's to read and write, and all else the host's."""

    slabs: PinnedSlabs
    keys: Keys  # (slots_max,)
    scores: NDArray[np.int64]  # (slots_max,)
    dirty: Flags  # (slots_max,)

    @property
    def rows(self) -> SlabRows:
        """The rows, as the GPU's kernels take them."""
        return self.slabs.rows


class HostMemory(CpuMemory):
    """The `DeviceMemory` of the host below a GPU."""

    staging_bytes_max = 0

    def __init__(self, work: CpuWork, of_gpu: GpuWork) -> None:
        super().__init__(work)
        self._of_gpu = of_gpu

    def slab_slots(self, wanted: int) -> int:
        return 1 << (wanted.bit_length() - 1)

    def allocate_slots(self, layout: Layout) -> HostSlots:  # type: ignore[override]
        runtime, scratch = self._of_gpu.runtime, self._of_gpu.scratch
        rows = SlabRows(scratch.plain(16, np.uint64), 0, layout)
        empty = reserve(0)
        rows.owner = PinnedSlabs(runtime, scratch, rows)
        return HostSlots(rows.owner, empty.view(np.int64), empty.view(np.int64), empty)

    def reserve_slots(  # type: ignore[override]
        self, memory: HostSlots, slot_count: int, slots_max: int, slab_slots: int
    ) -> None:
        self.reserve_metadata(memory, slot_count, slots_max)
        memory.slabs.reserve(slab_slots)

    def add_slots(self, memory: HostSlots, low: int, high: int) -> None:  # type: ignore[override]
        memory.slabs.add((high - low) >> memory.rows.shift)
        super().add_slots(memory, low, high)  # type: ignore[arg-type]

    def drop_slots(self, memory: HostSlots, low: int, high: int) -> None:  # type: ignore[override]
        self.drop_metadata(memory, low, high)
        if not self._of_gpu.runtime.is_lost:
            self._of_gpu.wait()
            memory.slabs.drop((high - low) >> memory.rows.shift)


class HostRows(CpuRows):
    """The `DeviceRows` of the host below a GPU, but for what writes rows or computes with them."""

    def __init__(self, work: CpuWork, of_gpu: GpuWork) -> None:
        super().__init__(work)
        self._of_gpu = of_gpu

    def read_rows(self, rows: Any, slots: Slots) -> Rows:
        layout, shift = rows.layout, rows.shift
        found = np.empty((len(slots), layout.stride), layout.element)
        self._of_gpu.wait()  # kernels that write them may be queued
        of_slab = slots >> shift
        for number in np.unique(of_slab):
            slab = rows.owner.slabs[number].owner.view(layout.element).reshape(-1, layout.stride)
            here = np.flatnonzero(of_slab == number)
            found[here] = slab[slots[here] & ((1 << shift) - 1)]
        return found

    def row_pieces(self, rows: Any, slots: Slots) -> Iterator[tuple[slice, Rows, Slots]]:
        step = max(1, _LOGGED_BYTES // rows.layout.row_bytes)
        for low in range(0, len(slots), step):
            piece = slots[low : low + step]
            yield slice(low, low + step), self.read_rows(rows, piece), np.arange(len(piece))


class HostDevice(CpuDevice):
    """The Device protocol on the host below a GPU, but for what writes rows."""

    def __init__(self, of_gpu: GpuWork, threads: int | None) -> None:
        super().__init__(threads)
        self.memory = HostMemory(self.work, of_gpu)
        self.rows = HostRows(self.work, of_gpu)

"""A GPU: the kernel launches of each method of the Device protocol, and their arguments.

The kernels are the `.cu` files of `embstore/kernels`; each file states the formula. The modules
here define the order of work, and where arrays are. Work is queued in the runtime (`runtime.py`).
The host waits where the protocol states that a result is known: once per call if no row is missing.

    a lookup     unique, probe; gather and touch if no key is missing ... one wait
    an update    (unique, probe,) sum_by_key ... one wait ... touch, apply
    misses       read_slots of victims; the victims' rows are copied down; the missing rows are
                 copied up, piece by piece; insert ... several waits

    gpu_work     launches, copies, findings           scratch   memory of a call
    gpu_memory   slots, index, arrays                 staging   pinned buffers
    gpu_keys     unique, probe, the index             slabs     memory of slots
    gpu_rows     gather, optimizers, misses
    gpu_sums     sums of gradients by key
    gpu_slots    contents of slots, victims
    gpu_levels   rows that go down to level two and come up

A call over several tables of a pool launches each kernel once, not once per table.
"""

from copy import copy
from typing import Any

from embstore.arithmetic.jit import compile_kernels
from embstore.device.base import DeviceKeys, DeviceLevels, DeviceRows, DeviceSlots
from embstore.device.gpu_keys import GpuKeys
from embstore.device.gpu_levels import GpuLevels
from embstore.device.gpu_memory import GpuMemory, PinnedMemory
from embstore.device.gpu_rows import GpuRows
from embstore.device.gpu_slots import GpuSlots
from embstore.device.gpu_work import GpuWork
from embstore.device.memory import DeviceMemory
from embstore.device.runtime import Runtime
from embstore.kernels.sources import VERBS


class GpuDevice:
    """The Device protocol on a GPU. One thread calls it at a time.

    Parameters
    ----------
    runtime : the GPU
    threads : number of threads that fill and empty pinned buffers, including the calling thread;
        None: one per core, at most 8
    """

    is_queued = True

    def __init__(self, runtime: Runtime, threads: int | None = None) -> None:
        self.name = runtime.name
        self.runtime = runtime
        self.work = GpuWork(runtime, threads)
        self.memory: DeviceMemory = GpuMemory(self.work)
        self.keys: DeviceKeys = GpuKeys(self.work)
        self.rows: DeviceRows = GpuRows(self.work)
        self.slots: DeviceSlots = GpuSlots(self.work)
        self.levels: DeviceLevels | None = None
        below = copy(self)
        below.memory = PinnedMemory(self.work)
        self.levels = GpuLevels(below, self.work)

    @property
    def is_lost(self) -> bool:
        """Whether the device has failed."""
        return self.runtime.is_lost

    def finish(self) -> None:
        """Wait for all queued work."""
        self.work.wait()

    def facts(self) -> dict[str, Any]:
        """Return the runtime's facts, and the bytes of scratch memory."""
        return self.runtime.facts() | {"scratch_bytes": self.work.scratch.allocated_bytes}

    def warm_up(self) -> None:
        """Compile every kernel, including the host kernels that read and write rows of storage."""
        self.runtime.compile(VERBS)
        compile_kernels()

    def close(self) -> None:
        """End the threads, and wait for all work. Allocated arrays stay valid."""
        self.work.close()

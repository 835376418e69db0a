"""The CPU: Numba kernels over NumPy arrays, shared among a few threads.

    cpu_work     threads, the ranges of a call, scratch memory
    cpu_memory   arrays, slots in reserved address space
    cpu_keys     unique keys, the index
    cpu_rows     rows of a call, rows of the cache
    cpu_slots    keys, scores and flags of slots, victims

This module imports LLVM's loader. The package `embstore.device` does not import this module, so the
loader is imported only when the device is chosen.
"""

import os
from typing import Any

from embstore.arithmetic.jit import compile_kernels
from embstore.device.base import DeviceKeys, DeviceLevels, DeviceRows, DeviceSlots
from embstore.device.cpu_keys import CpuKeys
from embstore.device.cpu_memory import CpuMemory
from embstore.device.cpu_rows import CpuRows
from embstore.device.cpu_slots import CpuSlots
from embstore.device.cpu_work import CpuWork
from embstore.device.memory import DeviceMemory
from embstore.host.facts import host_facts

THREADS_MAX = 4
"""The most threads by default: memory bandwidth is shared, and trainers need cores too."""


class CpuDevice:
    """The Device protocol on the CPU. One thread calls it at a time.

    Parameters
    ----------
    threads : number of threads that share the work of a call, including the calling thread; None:
        one per core, at most 4
    """

    name = "cpu"
    is_queued = False
    is_lost = False
    levels: DeviceLevels | None = None

    def __init__(self, threads: int | None = None) -> None:
        self.work = CpuWork(threads or min(THREADS_MAX, os.cpu_count() or 1))
        self.memory: DeviceMemory = CpuMemory(self.work)
        self.keys: DeviceKeys = CpuKeys(self.work)
        self.rows: DeviceRows = CpuRows(self.work)
        self.slots: DeviceSlots = CpuSlots(self.work)

    def close(self) -> None:
        """End the threads and drop the scratch memory. Allocated arrays stay valid."""
        self.work.close()

    def warm_up(self) -> None:
        """Load or compile every kernel."""
        compile_kernels()

    def finish(self) -> None:
        """Return at once: every call has waited for its threads."""

    def facts(self) -> dict[str, Any]:
        """Return the processor's model, the host's memory, and the number of threads of a call."""
        return host_facts() | {"threads": self.work.threads}

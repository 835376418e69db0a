"""Memory of a GPU that another process has opened, and writes to while the store works.

A server exports an allocation (`Runtime.export`). A client on the same host copies keys and
gradients into it, and reads rows from it. None of this data passes through the host.

**Trust.** The other process can change every byte at any moment, also between our check and our
use. If a key changed after the check against its table's bounds, a kernel would access memory out
of bounds. Therefore COMPUTE copies keys to memory of our own, and only the copy is read. Gradients
are copied as well. For the kernels alone no copy would be needed: they read each gradient once,
into the sum that is checked and applied. But if commands are logged, gradients are read twice, by
the kernels and by the command log. These two reads must return the same bytes: otherwise a replay
would give another digest. The copy reads and writes the bytes once in the GPU's own memory, which
adds little to the bytes that the update reads and writes. An array is copied once, however often it
is adopted. Rows are only written to the shared memory, never read from it.

**Order.** The other process records an event of ours after its copies. The server checks that the
event is reached (`are_inputs_ready`) before it executes the call. COMPUTE never waits for the
event: if the other process hangs or was killed, the event may never be reached, and then the store
would hang too. Even an event that was found to be reached is not safe to wait for: the other
process may have recorded it again since. In the other direction no event is needed, because a call
waits for its GPU before it returns.

**Content.** The memory is filled with zeros at first, because it may have contained rows of other
clients.
"""

from typing import Any

import numpy as np

from embstore.device.base import Device
from embstore.device.gpu_work import GpuWork
from embstore.device.runtime import EXPORTED_MULTIPLE_BYTES, DeviceArray
from embstore.errors import InvalidArgumentError


class SharedMemory:
    """An allocation that another process can open. It is used in the thread that calls the device;
    methods marked "Any thread" are exceptions.

    The allocation is freed with the last reference to this object and to its arrays. The owner must
    not drop its reference before the other process has closed the memory.
    """

    def __init__(self, work: GpuWork, byte_count: int) -> None:
        assert byte_count % EXPORTED_MULTIPLE_BYTES == 0
        self._runtime = work.runtime
        self._memory = work.scratch.plain(byte_count, np.uint8)
        work.runtime.fill(self._memory, 0)
        work.wait()
        self.exported = work.runtime.export(self._memory)

    @property
    def are_inputs_ready(self) -> bool:
        """Whether the other process has done its work on the memory, up to the event that it
        recorded last. Any thread."""
        return self._runtime.is_reached(self.exported.event)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> "SharedArray":
        """Return an array within the memory; the caller has checked its bounds. Any thread."""
        count, width = (*shape, 1)[:2]
        d_bytes = self._memory[offset : offset + count * width * dtype.itemsize]
        return SharedArray(d_bytes.view(dtype, width=width), shape)


class SharedArray:
    """An array in shared memory. A command contains it in place of a caller's array."""

    def __init__(self, d_array: DeviceArray, shape: tuple[int, ...]) -> None:
        self.d_array = d_array
        self.shape, self.dtype = shape, d_array.dtype
        self._own: DeviceArray | None = None
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": d_array.dtype.str,
            "data": (d_array.address, False),
            "version": 3,
            "stream": None,
        }

    def __len__(self) -> int:
        return self.shape[0]

    def owned(self, work: GpuWork) -> DeviceArray:
        """Return a copy of the array in memory of our own. The copy is made on first use."""
        if self._own is None:
            there = self.d_array
            self._own = work.scratch.take(there.count, there.dtype, width=there.width)
            work.runtime.copy(there, self._own)
        return self._own


def share(device: Device, byte_count: int) -> SharedMemory:
    """Return memory of a device for another process. Call it in the thread that calls the device.

    Raises
    ------
    InvalidArgumentError : the device is no GPU.
    CapacityError : the device has too little memory, or cannot export it.
    """
    work = getattr(device, "work", None)
    if not isinstance(work, GpuWork):
        raise InvalidArgumentError(
            f"expected host arrays, found some in a GPU's memory: the rows are on {device.name}"
        )
    return SharedMemory(work, byte_count)

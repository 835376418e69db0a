"""Memory of calls on a GPU: taken, given back by the last reference, and used again.

Plain allocations are dear and giving them back waits for the device, so a block that is not needed
any more is kept for the next call of about the same size; blocks have sizes of four steps to a
doubling. What is taken again may still be read by work given before: that is no fault, because all
work on scratch memory is done in one stream, COMPUTE, in the order in which it was given. Whoever
has another stream touch it waits, or has the streams follow each other.

Only when the device has no memory left are kept blocks given back; so what is held for long is
allocated here as well (`plain`).

Some work may not fail for want of memory, because half of it would be worse than none: slots change
hands, or rows are updated. `secure` is called before, where a CapacityError does no harm: it has a
**spare** in hand, which is given up when nothing else is left.
"""

import numpy as np
from numpy.typing import DTypeLike

from embstore.device.runtime import DeviceArray, Runtime
from embstore.errors import CapacityError

_LEAST_BYTES = 256


class _Lease:
    """Has a block kept again when the last array that names it goes, in whatever thread.

    It knows the block by its address alone: arrays may go in a circle of references, all of which
    Python finalizes in an order of its own.
    """

    def __init__(self, kept: list[int], address: int) -> None:
        self._kept = kept
        self._address = address

    def __del__(self) -> None:
        self._kept.append(self._address)


class Scratch:
    """Blocks of one device. One thread at a time takes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._blocks: dict[int, DeviceArray] = {}  # by address
        self._kept: dict[int, list[int]] = {}  # size -> addresses of those not in use
        self._spare: DeviceArray | None = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all blocks, in use or kept, and of the spare."""
        spare = 0 if self._spare is None else self._spare.nbytes
        return spare + sum(block.nbytes for block in list(self._blocks.values()))

    def take(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """Return an array of any content.

        Raises
        ------
        CapacityError : the device has no such memory, even without what is kept.
        """
        size = block_bytes(count * width * np.dtype(dtype).itemsize)
        kept = self._kept.setdefault(size, [])
        address = kept.pop() if kept else self._allocate(size)
        return DeviceArray(address, count, dtype, _Lease(kept, address), width=width)

    def plain(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """Return an allocation of its own.

        Raises
        ------
        CapacityError : the device has no such memory, even without what is kept.
        """
        try:
            return self._runtime.allocate(count, dtype, width=width)
        except CapacityError:
            self.clear()
        try:
            return self._runtime.allocate(count, dtype, width=width)
        except CapacityError:
            if self._spare is None:
                raise
            self._spare = None
        return self._runtime.allocate(count, dtype, width=width)

    def secure(self, byte_count: int) -> None:
        """Have a spare of so many bytes.

        Raises
        ------
        CapacityError
        """
        if self._spare is None or len(self._spare) < byte_count:
            self._spare = None
            self._spare = self.plain(block_bytes(byte_count), np.uint8)

    def _allocate(self, size: int) -> int:
        block = self.plain(size, np.uint8)
        self._blocks[block.address] = block
        return block.address

    def close(self) -> None:
        """Give back what is not in use, and the spare."""
        self._spare = None
        self.clear()

    def clear(self) -> None:
        """Give back what is not in use."""
        for kept in self._kept.values():
            while kept:
                del self._blocks[kept.pop()]


def block_bytes(size: int) -> int:
    """Return the size of the block that serves `size` bytes."""
    step = max(_LEAST_BYTES, 1 << max((size - 1).bit_length() - 3, 0))
    return max(-(-size // step) * step, _LEAST_BYTES)

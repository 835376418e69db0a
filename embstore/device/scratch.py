"""Scratch memory of calls on a GPU: blocks that become free with their last reference, for reuse.

An allocation is expensive, and freeing memory waits for the device. Therefore a free block is kept
for the next call of about the same size; between a size and its double there are four block sizes.
A block that is used again may still be read by work queued before. That is safe, because all work
on scratch memory runs in one stream, COMPUTE, in the order in which it was queued. Code that uses a
block in another stream waits, or makes one stream follow the other.

Free blocks are returned to the device only when the device is out of memory. Long-lived allocations
are made here as well (`plain`), so that free blocks are returned if such an allocation needs their
memory.

Some work must not fail for lack of memory, because a change that is half done is worse than none:
giving slots to other rows, or updating rows. `secure` is called before such work, when a
CapacityError is harmless. It allocates a **spare** block, which is freed when no other memory is
left.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from embstore.device.recorder import Recorder
from embstore.device.runtime import DeviceArray
from embstore.errors import CapacityError

_LEAST_BYTES = 256


class _Lease:
    """An owner of arrays that returns their block to the free list when the last of these arrays is
    freed, in any thread.

    It stores only the block's address, not a reference to the block. Arrays may be part of a
    reference cycle, and Python finalizes the members of a cycle in an undefined order.
    """

    def __init__(self, kept: list[int], address: int) -> None:
        self._kept = kept
        self._address = address

    def __del__(self) -> None:
        self._kept.append(self._address)


class Scratch:
    """The scratch blocks of one device. One thread takes blocks at a time."""

    def __init__(self, runtime: Recorder) -> None:
        self._runtime = runtime
        self._blocks: dict[int, DeviceArray] = {}  # by address
        self._kept: dict[int, list[int]] = {}  # size -> addresses of free blocks
        self._spare: DeviceArray | None = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all blocks, in use or free, and of the spare."""
        spare = 0 if self._spare is None else self._spare.nbytes
        return spare + sum(block.nbytes for block in list(self._blocks.values()))

    def take(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """Return an uninitialized array.

        Raises
        ------
        CapacityError : the device has too little memory, even after all free blocks were returned.
        """
        item = np.dtype(dtype)
        size = block_bytes(count * width * item.itemsize)
        kept = self._kept.get(size)
        if kept is None:
            kept = self._kept[size] = []
        address = kept.pop() if kept else self._allocate(size)
        return DeviceArray(address, count, item, _Lease(kept, address), width=width)

    def parts(self, count: int, *dtypes: DTypeLike) -> list[DeviceArray]:
        """Return arrays of `count` elements each in one block, which becomes free when all arrays
        are freed.

        Raises
        ------
        CapacityError : as for `take`.
        """
        byte_count, places = _places(count, dtypes)
        block = self.take(byte_count, np.uint8)
        address, lease = block.address, block.owner
        return [DeviceArray(address + low, count, item, lease) for low, item in places]

    def plain(self, count: int, dtype: DTypeLike, *, width: int = 1) -> DeviceArray:
        """Return an array in an allocation of its own.

        Raises
        ------
        CapacityError : the device has too little memory, even after all free blocks were returned.
        """
        try:
            return self._runtime.allocate(count, dtype, width=width)
        except CapacityError:
            self._runtime.submit()  # recorded work keeps references to arrays
            self.clear()
        try:
            return self._runtime.allocate(count, dtype, width=width)
        except CapacityError:
            if self._spare is None:
                raise
            self._spare = None
        return self._runtime.allocate(count, dtype, width=width)

    def secure(self, byte_count: int) -> None:
        """Allocate a spare block of `byte_count` bytes, unless the present one is at least as
        large."""
        if self._spare is None or len(self._spare) < byte_count:
            self._spare = None
            self._spare = self.plain(block_bytes(byte_count), np.uint8)

    def _allocate(self, size: int) -> int:
        block = self.plain(size, np.uint8)
        self._blocks[block.address] = block
        return block.address

    def close(self) -> None:
        """Free the blocks that are not in use, and the spare."""
        self._spare = None
        self.clear()

    def clear(self) -> None:
        """Free the blocks that are not in use."""
        for kept in self._kept.values():
            while kept:
                del self._blocks[kept.pop()]


@lru_cache(maxsize=1 << 12)
def _places(
    count: int, dtypes: tuple[DTypeLike, ...]
) -> tuple[int, list[tuple[int, np.dtype[Any]]]]:
    """Return the total bytes of adjacent arrays of `count` elements, and the offset and dtype of
    each array."""
    places, low = [], 0
    for dtype in dtypes:
        item = np.dtype(dtype)
        places.append((low, item))
        low += -(-count * item.itemsize // _LEAST_BYTES) * _LEAST_BYTES
    return low, places


@lru_cache(maxsize=1 << 12)
def block_bytes(size: int) -> int:
    """Return the size of the block that is used for `size` bytes."""
    step = max(_LEAST_BYTES, 1 << max((size - 1).bit_length() - 3, 0))
    return max(-(-size // step) * step, _LEAST_BYTES)

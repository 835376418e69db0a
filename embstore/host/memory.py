"""Anonymous memory. A page of it is allocated when it is first written, and freed when it is
released.

Address space is reserved for as many bytes as a budget allows. Therefore a pool grows without
moving, and its arrays keep their addresses until the budget itself is raised. Huge pages matter:
two million rows of 272 bytes take 133,000 small pages. This is far more than a TLB holds, so each
random read would cost a page walk.
"""

import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import address
from embstore.errors import CapacityError

HUGE_PAGE_BYTES = 2 << 20
_PIECE_BYTES = 32 * HUGE_PAGE_BYTES
"""Number of bytes that exist twice during `move`; they are few compared to a cache."""
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # the mmap module names it from 3.13 on


def reserve(byte_count: int) -> NDArray[np.uint8]:
    """Return (byte_count,) zeros in a mapping of their own. It is unmapped when the last view of it
    is gone.

    The first byte is aligned to a huge page if `byte_count` is at least a huge page, else to a
    page.
    """
    huge = byte_count >= HUGE_PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        mapping = mmap.mmap(-1, max(byte_count, 1) + (HUGE_PAGE_BYTES if huge else 0), flags=flags)
    except (OSError, OverflowError) as exc:
        raise CapacityError(
            f"expected {byte_count} bytes of address space, which the system refused ({exc}); "
            "give a smaller cache_bytes or host_cache_bytes"
        ) from exc
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    skipped = -address(whole) % HUGE_PAGE_BYTES if huge else 0
    return whole[skipped : skipped + byte_count]


def release(array: NDArray[Any]) -> None:
    """Free the whole pages inside a contiguous view of a reserved array. The freed pages then read
    as zeros."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    assert isinstance(mapping, mmap.mmap), "expected a view of reserve()"
    offset = address(array) - address(np.frombuffer(mapping, np.uint8))
    first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (offset + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def move(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy a reserved array to the beginning of another array, and free the copied pieces one by
    one.

    Rejected: mremap, which moves pages without a copy. Python refuses mremap as long as a view
    exists, and the result is not aligned to huge pages.
    """
    step = max(1, _PIECE_BYTES // max(1, source[:1].nbytes))
    for low in range(0, len(source), step):
        piece = slice(low, min(low + step, len(source)))
        target[piece] = source[piece]
        release(source[piece])


def lengthened(array: NDArray[Any], used: int, length: int) -> NDArray[Any]:
    """Return a reserved (length,) array that begins with array[:used]; `array` is freed.

    Raises
    ------
    CapacityError : there is no address space; `array` is unchanged.
    """
    longer = reserve(length * array.itemsize).view(array.dtype)
    move(array[:used], longer)
    return longer

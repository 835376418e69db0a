"""Rows on the disk and not in memory: find out, and ask for all before touching one.

Touching cold pages of a map one by one costs a disk latency each; asking for each with
MADV_WILLNEED first, in page order, lets the disk work on them together (20,000 random rows of a
cold 6 GB file: 4.9 s with a plain map, 0.25 s so). A system call per page is too dear for rows that
are in memory, so a sample of the pages decides.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import Int, Int64sIn, Uint8s, Uint64sIn, address, c_function, kernel
from embstore.storage.format import PAGE_BYTES

_PAGE = np.uint64(PAGE_BYTES)
_WILLNEED = 3
_mincore = c_function("mincore", "int32", "uint64", "uint64", "int64")
_madvise = c_function("madvise", "int32", "uint64", "uint64", "int32")


@kernel
def count_absent(
    addresses: Uint64sIn,  # (n,)
    step: Int,
    flag: Uint8s,  # (1,) scratch
    flag_address: Int,
) -> int:
    """Return how many of addresses[::step] are on pages that are not in memory; 0 is no address."""
    absent = 0
    for i in range(0, addresses.shape[0], step):
        if addresses[i] == np.uint64(0):
            continue
        flag[0] = 1
        _mincore(addresses[i] // _PAGE * _PAGE, _PAGE, flag_address)
        if not flag[0] & 1:
            absent += 1
    return absent


@kernel
def will_need(
    addresses: Uint64sIn,  # (n,)
    order: Int64sIn,  # (n,) ascending by address
    size: Int,  # bytes at each address
) -> None:
    """Ask for the pages of every address, once for neighbours; 0 is no address."""
    begin = end = np.uint64(0)
    for i in order:
        if addresses[i] == np.uint64(0):
            continue
        first = addresses[i] // _PAGE * _PAGE
        last = (addresses[i] + np.uint64(size - 1)) // _PAGE * _PAGE + _PAGE
        if first > end:
            if begin < end:
                _madvise(begin, end - begin, _WILLNEED)
            begin = first
        end = max(end, last)
    if begin < end:
        _madvise(begin, end - begin, _WILLNEED)


_SAMPLE = 64


def prefetch_cold_pages(addresses: NDArray[np.uint64], size: int) -> bool:
    """Ask for the pages of all records if, by a sample, some are on the disk; say whether."""
    flag = np.zeros(1, np.uint8)
    step = max(1, len(addresses) // _SAMPLE)
    if not count_absent(addresses, step, flag, address(flag)):
        return False
    will_need(addresses, np.argsort(addresses, kind="stable"), size)
    return True

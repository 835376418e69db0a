"""Shared, read-only maps of files as arrays. A map is unmapped when the last reference to it is
gone.

mmap.mmap is not used, because it keeps a descriptor per map, and a store has a map per segment.
"""

import ctypes
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int, length: int) -> NDArray[np.uint8]:
    """Return a map of the first `length` bytes of a file. The system is advised that reads are
    random."""
    return np.asarray(_Mapping(descriptor, length))


class _Mapping:
    """The memory of a map, in the form that NumPy can view."""

    def __init__(self, descriptor: int, length: int) -> None:
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        weakref.finalize(self, _libc.munmap, address, length).atexit = False
        _libc.madvise(address, length, mmap.MADV_RANDOM)
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, True),
        }

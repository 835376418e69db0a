"""Threads that flush denormals, and what is computed in them all the same (contract.md, rule 1).

Flush-to-zero and denormals-are-zero are bits of a thread's control register (MXCSR on x86, FPCR
on ARM). A library compiled with -ffast-math sets them for whichever thread loads it,
`torch.set_flush_denormal` for its caller, JAX and TensorFlow for the threads that run callbacks;
and a thread inherits them from the one that started it. Then tiny values become zero without a
trace, and two stores drift apart. No import-time check can see this: every executor of commands,
and each function here that trainers call by themselves, looks at its own thread first (`kept`),
which costs about a microsecond. What computes on several threads does so in each (`keeping`).

Where they are flushed, it runs in C's default floating-point environment, and what the thread had
is put back at its end: the register is the thread's own, so nobody else sees the change. Rejected:
a thread of our own for such calls, which would inherit the mode as well, and be a switch of threads
for each call of a framework that is not at fault.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from embstore.errors import DeviceError

_SMALLEST_BITS = 1
_SMALLEST = np.full(1, _SMALLEST_BITS, np.uint32).view(np.float32)
_ENVIRONMENT_BYTES = 256
"""No C library has a larger fenv_t."""
_DEFAULT = ctypes.c_void_p(-1)
"""FE_DFL_ENV, of glibc and musl alike."""

P = ParamSpec("P")
R = TypeVar("R")


def keeps_denormals() -> bool:
    """Add two denormals in the calling thread, and say whether there is a sum."""
    # Bits are compared as integers: with denormals-are-zero a denormal compares equal to 0.0.
    return int((_SMALLEST + _SMALLEST).view(np.uint32)[0]) == 2 * _SMALLEST_BITS


def check_denormals() -> None:
    """Raise DeviceError, if the calling thread flushes denormals."""
    if not keeps_denormals():
        raise DeviceError(
            "expected this thread to keep denormals, found them flushed to zero "
            "(FTZ or DAZ is set, perhaps by a library compiled with -ffast-math)"
        )


def keeping(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function, and keep denormals while it runs, whatever its thread does.

    Raises DeviceError, and has not called it, where the thread cannot be told to.
    """
    if keeps_denormals():
        return function(*args, **kwargs)
    with _default_environment():
        check_denormals()
        return function(*args, **kwargs)


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that is called by `keeping`."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return keeping(function, *args, **kwargs)

    return called


@contextmanager
def _default_environment() -> Iterator[None]:
    library = _libm()
    if library is None:
        yield
        return
    before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    library.fegetenv(before)
    library.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        library.fesetenv(before)


@cache
def _libm() -> Any | None:
    """Return the C library's functions of the environment; None where there are none."""
    for name in ("libm.so.6", None):
        try:
            library = ctypes.CDLL(name)
            library.fegetenv.argtypes = library.fesetenv.argtypes = [ctypes.c_void_p]
        except (OSError, AttributeError):
            continue
        return library
    return None

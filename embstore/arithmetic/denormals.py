"""Computing with denormals in threads that flush them (contract.md, rule 1).

Flush-to-zero and denormals-are-zero are bits of a thread's control register (MXCSR on x86, FPCR on
ARM). A library that was compiled with -ffast-math sets these bits for the thread that loads it,
`torch.set_flush_denormal` sets them for its caller, and JAX and TensorFlow for the threads that run
callbacks. A thread also inherits the bits from the thread that started it. In such threads tiny
values become zero without notice, and two stores drift apart. A check at import time cannot notice
such a change of mode. Therefore every executor of commands, and each function here that trainers
call directly, checks its own thread first (`kept`), which costs about a microsecond. Code that
computes on several threads does so in each thread (`keeping`).

If a thread flushes denormals, the function runs in C's default floating-point environment, and the
thread's own environment is restored at the end. The register belongs to the thread, so no other
code is affected. Rejected: running such calls in a thread of our own. This thread would inherit the
mode as well, and each call of a framework that is not at fault would need a switch of threads.
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
"""More bytes than the fenv_t of any C library has."""
_DEFAULT = ctypes.c_void_p(-1)
"""FE_DFL_ENV in glibc and musl."""

P = ParamSpec("P")
R = TypeVar("R")


def keeps_denormals() -> bool:
    """Add two denormals in the calling thread, and return whether the sum is right."""
    # Bits are compared as integers: under denormals-are-zero a denormal equals 0.0.
    return int((_SMALLEST + _SMALLEST).view(np.uint32)[0]) == 2 * _SMALLEST_BITS


def check_denormals() -> None:
    """Raise DeviceError if the calling thread flushes denormals."""
    if not keeps_denormals():
        raise DeviceError(
            "expected this thread to keep denormals, found them flushed to zero "
            "(FTZ or DAZ is set, perhaps by a library compiled with -ffast-math)"
        )


def keeping(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a mode that keeps denormals, independently of the thread's mode.

    Raises DeviceError if the thread's mode cannot be changed; in this case the function is not
    called.
    """
    if keeps_denormals():
        return function(*args, **kwargs)
    with _default_environment():
        check_denormals()
        return function(*args, **kwargs)


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls `function` through `keeping`."""

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
    """Return the C library with functions for the floating-point environment, or None."""
    for name in ("libm.so.6", None):
        try:
            library = ctypes.CDLL(name)
            library.fegetenv.argtypes = library.fesetenv.argtypes = [ctypes.c_void_p]
        except (OSError, AttributeError):
            continue
        return library
    return None

"""Threads that flush denormals to zero, as a library's flags may have left them."""

import ctypes
import ctypes.util
import platform
import threading

import pytest

FLUSH_TO_ZERO = 0x8000
DENORMALS_ARE_ZERO = 0x0040
MXCSR_WORD = 7
"""Place of MXCSR in glibc's fenv_t on x86-64, in 32-bit words."""

needs_glibc = pytest.mark.skipif(
    (platform.machine(), platform.libc_ver()[0]) != ("x86_64", "glibc"),
    reason="sets MXCSR through glibc's fenv_t",
)


def in_new_thread(call, mxcsr_bits=0):
    """Return what a call returns or raises in a thread whose control register has these bits."""
    outcome = []

    def run():
        if mxcsr_bits:
            libm = ctypes.CDLL(ctypes.util.find_library("m"))
            environment = (ctypes.c_uint32 * 8)()
            libm.fegetenv(environment)
            environment[MXCSR_WORD] |= mxcsr_bits
            libm.fesetenv(environment)
        try:
            outcome.append(call())
        except Exception as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]

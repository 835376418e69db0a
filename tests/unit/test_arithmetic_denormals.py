"""Rule 1: a thread that flushes denormals to zero is found."""

import ctypes
import ctypes.util
import platform
import threading

import numpy as np
import pytest

from embstore.arithmetic import (
    add_ranks,
    apply_update,
    check_denormals,
    implementation,
    pool_rows,
    update_scalars,
)
from embstore.config import Sgd
from embstore.errors import DeviceError

FLUSH_TO_ZERO = 0x8000
DENORMALS_ARE_ZERO = 0x0040
MXCSR_WORD = 7
"""Place of MXCSR in glibc's fenv_t on x86-64, in 32-bit words."""


def in_new_thread(call):
    """Run `call` in a thread of its own, whose control register dies with it."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except Exception as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def call_with(mxcsr_bits, call):
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    environment = (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    environment[MXCSR_WORD] |= mxcsr_bits
    libm.fesetenv(environment)
    call()


def test_this_thread_keeps_denormals():
    check_denormals()


def test_a_new_thread_keeps_denormals():
    assert in_new_thread(check_denormals) is None


needs_glibc = pytest.mark.skipif(
    (platform.machine(), platform.libc_ver()[0]) != ("x86_64", "glibc"),
    reason="sets MXCSR through glibc's fenv_t",
)


@needs_glibc
@pytest.mark.parametrize(
    "mxcsr_bits", [FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO]
)
def test_a_thread_that_flushes_is_found(mxcsr_bits):
    assert in_new_thread(lambda: call_with(0, check_denormals)) is None
    found = in_new_thread(lambda: call_with(mxcsr_bits, check_denormals))
    assert isinstance(found, DeviceError)
    assert "denormals" in str(found)
    check_denormals()


IDS, ROWS = np.zeros(1, np.int32), np.ones((1, 2), np.float32)


@needs_glibc
@pytest.mark.parametrize(
    "call",
    [
        lambda: implementation("numpy").sum_by_key(IDS, 1, ROWS),
        lambda: pool_rows(ROWS, np.array([0, 1])),
        lambda: add_ranks(1, [(IDS, ROWS)]),
    ],
    ids=["sum_by_key", "pool_rows", "add_ranks"],
)
def test_what_sums_checks_its_thread(call):
    assert isinstance(in_new_thread(lambda: call_with(FLUSH_TO_ZERO, call)), DeviceError)


@needs_glibc
def test_the_compiled_sum_checks_its_thread():
    pytest.importorskip("numba")
    compiled = pytest.importorskip("embstore.arithmetic.compiled")
    compiled.sum_by_key(IDS, 1, ROWS)  # compiles, if it must, in a thread that is as usual
    found = in_new_thread(
        lambda: call_with(FLUSH_TO_ZERO, lambda: compiled.sum_by_key(IDS, 1, ROWS))
    )
    assert isinstance(found, DeviceError)


@needs_glibc
def test_a_refused_update_has_changed_nothing():
    weights, scalars = ROWS.copy(), update_scalars(Sgd(1), 1, 1.0, 2)
    found = in_new_thread(
        lambda: call_with(
            FLUSH_TO_ZERO,
            lambda: apply_update("sgd", weights, np.empty((1, 0), np.float32), ROWS, scalars),
        )
    )
    assert isinstance(found, DeviceError)
    assert weights.tolist() == ROWS.tolist()

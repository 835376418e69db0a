"""Rule 1: a thread that flushes denormals to zero is found."""

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
from tests.unit.flushing import (
    DENORMALS_ARE_ZERO,
    FLUSH_TO_ZERO,
    in_new_thread,
    needs_glibc,
)


def test_this_thread_keeps_denormals():
    check_denormals()


def test_a_new_thread_keeps_denormals():
    assert in_new_thread(check_denormals) is None


@needs_glibc
@pytest.mark.parametrize(
    "mxcsr_bits", [FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO]
)
def test_a_thread_that_flushes_is_found(mxcsr_bits):
    found = in_new_thread(check_denormals, mxcsr_bits)
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
    assert isinstance(in_new_thread(call, FLUSH_TO_ZERO), DeviceError)


@needs_glibc
def test_the_compiled_sum_checks_its_thread():
    pytest.importorskip("numba")
    compiled = pytest.importorskip("embstore.arithmetic.compiled")
    compiled.sum_by_key(IDS, 1, ROWS)  # compiles, if it must, in a thread that is as usual
    found = in_new_thread(lambda: compiled.sum_by_key(IDS, 1, ROWS), FLUSH_TO_ZERO)
    assert isinstance(found, DeviceError)


@needs_glibc
def test_a_refused_update_has_changed_nothing():
    weights, scalars = ROWS.copy(), update_scalars(Sgd(1), 1, 1.0, 2)
    found = in_new_thread(
        lambda: apply_update("sgd", weights, np.empty((1, 0), np.float32), ROWS, scalars),
        FLUSH_TO_ZERO,
    )
    assert isinstance(found, DeviceError)
    assert weights.tolist() == ROWS.tolist()

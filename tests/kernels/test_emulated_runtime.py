"""The emulated GPU's runtime: arguments, memory, the order of streams, failures."""

import gc
import shutil

import numpy as np
import pytest

from embstore.device.runtime import COMPUTE, DOWN, UP, DeviceArray
from embstore.errors import DeviceError
from tests.gpu import test_cuda_runtime as on_gpu
from tests.kernels.emulation import build as builder
from tests.kernels.emulation.build import KernelError
from tests.kernels.emulation.memory import GARBAGE
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.emulation.samples import made, put, take

if shutil.which(builder.COMPILER) is None:
    pytest.skip(f"needs {builder.COMPILER}", allow_module_level=True)


@pytest.fixture
def runtime():
    runtime = made()
    yield runtime
    runtime.close()
    gc.collect()
    assert runtime.live_bytes == 0, "an allocation was not given back"


@pytest.fixture
def product_runtime():
    """A runtime of the product's kernels; `runtime` has the samples'."""
    runtime = EmulatedRuntime()
    yield runtime
    runtime.close()


@pytest.mark.parametrize(("case", "arguments"), [
    (on_gpu.test_allocations_are_aligned_and_slices_share_them, ()),
    (on_gpu.test_copies_arrive_in_every_stream, (UP, DOWN, True, 1000)),
    (on_gpu.test_copies_arrive_in_every_stream, (COMPUTE, COMPUTE, False, 1000)),
    (on_gpu.test_streams_follow_each_other, ()),
    (on_gpu.test_copy_and_fill_write_all_bytes_and_no_others, ()),
    (on_gpu.test_sort_is_stable_and_leaves_the_ids, (1000, 8)),
    (on_gpu.test_sort_is_stable_and_leaves_the_ids, (1000, 1 << 20)),
    (on_gpu.test_a_kernel_takes_arrays_and_scalars, ()),
    (on_gpu.test_nothing_is_done_with_no_elements, ()),
])  # fmt: skip
def test_cases_of_the_cuda_runtime_hold_on_the_emulation(product_runtime, case, arguments):
    """So a case that fits the runtime no longer is found before a GPU is at hand."""
    case(product_runtime, *arguments)


# Arguments


@pytest.mark.parametrize("arguments, message", [
    ((), "number takes out, n; found 0 arguments"),
    ((np.int64(1), np.int64(1)), "number: parameter out is an array, found int64"),
    (("array", np.int32(1)), "number: parameter n is int64, found int32"),
    (("array", np.uint64(1)), "number: parameter n is int64, found uint64"),
    (("array", 1), "number: parameter n is int64, found int"),
    (("bytes", np.int64(1)), "number: parameter out is of 4-byte elements, found .* uint8"),
    (("array", "array"), "number: parameter n is int64, found .* int32"),
])  # fmt: skip
def test_an_argument_that_is_not_the_parameter_is_refused(runtime, arguments, message):
    array = runtime.allocate(1, np.int32)
    known = {"array": array, "bytes": array.view(np.uint8)}
    given = [known[a] if isinstance(a, str) else a for a in arguments]
    with pytest.raises(TypeError, match=message):
        runtime.launch("number", 1, *given)


def test_memory_that_was_given_back_is_refused(runtime):
    array = runtime.allocate(10, np.int32)
    gone = DeviceArray(array.address, 10, np.int32, None)
    longer = DeviceArray(array.address, 11, np.int32, array.owner)
    with pytest.raises(KernelError, match=r"number: parameter out: 44 bytes at .* not live"):
        runtime.launch("number", 1, longer, np.int64(1))
    del array, longer
    with pytest.raises(KernelError, match=r"number: parameter out: 40 bytes at .* not live"):
        runtime.launch("number", 1, gone, np.int64(1))
    with pytest.raises(KernelError, match="not live"):
        runtime.fill(gone, 0)


# Memory


# Order


def test_nothing_is_there_before_it_was_waited_for(runtime):
    values = np.arange(100, dtype=np.int32)
    out = np.zeros(100, np.int32)
    runtime.download(put(runtime, values), out)
    assert (out.view(np.uint8) == GARBAGE).all()
    runtime.wait(runtime.mark(COMPUTE))
    assert out.tolist() == values.tolist()


def test_pinned_memory_is_read_late_and_other_memory_at_once(runtime):
    pinned, pageable = runtime.allocate_host(16), np.empty(16, np.uint8)
    arrays = []
    for memory in (pinned[4:], pageable[4:]):
        memory[:] = 1
        arrays.append(put(runtime, memory))
        memory[:] = 2
    assert [take(runtime, array).tolist() for array in arrays] == [[2] * 12, [1] * 12]


def test_a_missing_follow_is_found(runtime):
    def copied(*, follows):
        d_values = put(runtime, np.zeros(4, np.int32))
        runtime.wait(runtime.mark(COMPUTE))
        runtime.upload(np.arange(4, dtype=np.int32), d_values, stream=UP)
        if follows:
            runtime.follow(DOWN, runtime.mark(UP))
        out = np.empty(4, np.int32)
        runtime.download(d_values, out, stream=DOWN)
        runtime.wait(runtime.mark(DOWN))
        return out.tolist()

    assert copied(follows=True) == [0, 1, 2, 3]
    assert copied(follows=False) == [0, 0, 0, 0]


# Failures


def test_a_launch_fails_where_told_and_every_call_after_it():
    runtime = made()
    out = runtime.allocate(4, np.int32)
    runtime.fail_at(2)
    runtime.launch("number", 1, out, np.int64(4))
    host = np.empty(4, np.int32)
    runtime.download(out, host)
    calls = [
        lambda: runtime.launch("number", 1, out, np.int64(4)),
        lambda: runtime.launch("number", 1, out, np.int64(4)),
        lambda: runtime.wait(runtime.mark(COMPUTE)),
        lambda: runtime.allocate(1, np.int8),
        lambda: runtime.upload(host, out),
        lambda: runtime.fill(out, 0),
        runtime.facts,
    ]
    for call in calls:
        assert not runtime.is_lost or call is not calls[0]
        with pytest.raises(DeviceError, match="a launch failed"):
            call()
    assert runtime.is_lost
    assert (host.view(np.uint8) == GARBAGE).all()
    runtime.close()

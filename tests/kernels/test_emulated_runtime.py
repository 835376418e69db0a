"""The emulated GPU's runtime: arguments, memory, the order of streams, failures."""

import gc
import shutil

import numpy as np
import pytest

from embstore.device.runtime import COMPUTE, DOWN, UP, DeviceArray, Runtime
from embstore.errors import CapacityError, DeviceError
from tests.gpu import test_cuda_runtime as on_gpu
from tests.kernels.emulation import build as builder
from tests.kernels.emulation.build import KernelError
from tests.kernels.emulation.runtime import GARBAGE, EmulatedRuntime
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
    (on_gpu.test_accumulate_is_a_running_sum, (1000,)),
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


def test_memory_is_aligned_garbage_and_counted():
    runtime = made(memory_bytes=4096)
    arrays = [runtime.allocate(n, np.uint8) for n in (1, 1000, 2000)]
    assert [array.address % 256 for array in arrays] == [0, 0, 0]
    assert all((take(runtime, array) == GARBAGE).all() for array in arrays)
    assert runtime.live_bytes == 3001
    assert runtime.facts()["memory_free_bytes"] == 1095
    with pytest.raises(CapacityError, match="asked for 1096 bytes, 3001 of 4096 are in use"):
        runtime.allocate(137, np.int64)
    piece = arrays.pop()[10:20].view(np.int16)
    assert runtime.live_bytes == 3001  # a slice keeps it
    del piece
    assert runtime.live_bytes == 1001
    assert runtime.allocate(137, np.int64).nbytes == 1096


def test_memory_given_back_serves_the_work_given_before(runtime):
    values, out = put(runtime, np.arange(1000, dtype=np.int32)), runtime.allocate(1000, np.int32)
    runtime.copy(values, out)
    del values
    runtime.allocate(1000, np.int32)
    assert take(runtime, out).tolist() == list(range(1000))


def test_a_large_allocation_takes_what_is_touched(runtime):
    array = runtime.allocate((1 << 31) + 300, np.int32)
    runtime.launch("store_at", 1, array, np.int64((1 << 31) + 299))
    assert take(runtime, array[(1 << 31) + 298 :]).tolist() == [0, 1]


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


def test_a_download_into_pinned_memory_waits_for_the_upload_from_it(runtime):
    pinned = runtime.allocate_host(8)
    pinned[:] = 7
    array = put(runtime, pinned)
    runtime.download(array, pinned)
    runtime.wait(runtime.mark(COMPUTE))
    assert pinned.tolist() == [7] * 8


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


def test_streams_follow_each_other_to_and_fro(runtime):
    array = put(runtime, np.zeros(1, np.int32))
    for value in range(1, 500):
        source, target = [(COMPUTE, UP), (UP, COMPUTE)][value % 2]
        runtime.follow(target, runtime.mark(source))
        runtime.upload(np.array([value], np.int32), array, stream=target)
    runtime.follow(COMPUTE, runtime.mark(UP))
    assert take(runtime, array).tolist() == [499]


def test_no_more_is_done_than_a_wait_needs(runtime):
    array = put(runtime, np.zeros(1, np.int32))
    early = runtime.mark(COMPUTE)
    out = np.empty(1, np.int32)
    runtime.download(array, out)
    runtime.wait(early)
    assert (out.view(np.uint8) == GARBAGE).all()
    runtime.wait(runtime.mark(COMPUTE))
    assert out.tolist() == [0]


def test_fill(runtime):
    values = put(runtime, np.array([5, 3, 5, 0, 3], np.int32))
    runtime.fill(values, 0x7F)
    assert take(runtime, values).tolist() == [0x7F7F7F7F] * 5


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


def test_the_runtime_has_all_that_the_protocol_names():
    wanted = {name for name in vars(Runtime) if not name.startswith("_")}
    runtime = made()
    lacking = (wanted | set(Runtime.__annotations__)) - set(dir(runtime))
    assert not lacking

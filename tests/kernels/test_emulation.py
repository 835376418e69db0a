"""The emulated GPU's kernels: what runs, and that what is wrong with one is found."""

import gc
import shutil

import numpy as np
import pytest

from embstore.device.runtime import COMPUTE
from tests.kernels.emulation import build as builder
from tests.kernels.emulation.build import KernelError, build
from tests.kernels.emulation.memory import GARBAGE
from tests.kernels.emulation.samples import PLAIN, cuda, made, put, take

if shutil.which(builder.COMPILER) is None:
    pytest.skip(f"needs {builder.COMPILER}", allow_module_level=True)

LAST_LINE = len(PLAIN.splitlines()) - 2  # of plain.cu, which begins behind two lines


@pytest.fixture
def runtime():
    runtime = made()
    yield runtime
    runtime.close()
    gc.collect()
    assert runtime.live_bytes == 0, "an allocation was not given back"


@pytest.mark.parametrize("fibers", [False, True])
def test_the_seed_decides_the_order_of_threads(fibers):
    def order(seed):
        runtime = made(seed=seed, fibers=fibers)
        out, count = put(runtime, np.zeros(256, np.int32)), put(runtime, np.zeros(1, np.int32))
        runtime.launch("order", 1, out, count)
        return take(runtime, out).tolist()

    assert sorted(order(0)) == list(range(256)) != order(0)
    assert order(0) == order(0) != order(1)


def test_shared_memory_is_garbage_in_every_block(runtime):
    out = runtime.allocate(512, np.uint8)
    runtime.launch("read_shared", 2, out)
    assert (take(runtime, out) == GARBAGE).all()


# What is wrong with a kernel


def test_a_race_is_found_in_fibers():
    def counted(**options):
        runtime = made(**options)
        count, arrived = put(runtime, np.zeros(1, np.uint32)), put(runtime, np.zeros(1, np.uint32))
        runtime.launch("add_by_two_steps", 1, count, arrived)
        assert take(runtime, arrived).tolist() == [256]
        return take(runtime, count)[0]

    assert counted() == 256  # one thread after the other, nothing is to be seen
    assert all(counted(fibers=True, seed=seed) < 256 for seed in range(5))


def test_a_missing_barrier_is_found_by_some_seed():
    def is_right(seed):
        runtime = made(seed=seed)
        out = runtime.allocate(256, np.int32)
        runtime.launch("forget_the_barrier", 1, out)
        return take(runtime, out).tolist() == list(range(256))[::-1]

    assert not all(is_right(seed) for seed in range(5))


@pytest.mark.parametrize("kernel, message", [
    ("leave_early", r"have parted: 40 waiting.cu:\d+ __syncthreads .*; 216 have ended"),
    ("part_at_barriers", r"have parted: .*waiting.cu:\d+ __syncthreads"),
    ("part_in_warp", r"have parted: .*waiting.cu:\d+ __shfl_sync"),
    ("outside_shared", r"waiting.cu:\d+: an index is outside its array .*thread 255"),
    ("overflow", rf"plain.cu:{LAST_LINE}: a signed sum overflows \(block 0"),
])  # fmt: skip
def test_what_goes_wrong_ends_the_launch_and_says_where(runtime, kernel, message):
    out = runtime.allocate(256, np.int32)
    runtime.launch(kernel, 1, out)
    with pytest.raises(KernelError, match=message):
        runtime.wait(runtime.mark(COMPUTE))
    runtime.launch("number", 1, out, np.int64(256))
    assert take(runtime, out).tolist() == list(range(256))


def test_a_thread_that_polls_lets_the_others_run(runtime):
    out, turn = runtime.allocate(256, np.int32), put(runtime, np.zeros(1, np.int32))
    runtime.launch("wait_for_threads", 1, out, turn, np.int32(255))
    assert take(runtime, out).tolist() == list(range(256))


def test_polling_for_ever_is_reported(runtime):
    out, turn = runtime.allocate(256, np.int32), put(runtime, np.zeros(1, np.int32))
    runtime.launch("wait_for_threads", 1, out, turn, np.int32(-1))
    with pytest.raises(KernelError, match=r"waiting.cu:\d+ __nanosleep: polls .*thread 255"):
        runtime.wait(runtime.mark(COMPUTE))


@pytest.mark.parametrize("fibers", [False, True])
def test_an_address_that_is_not_aligned_is_reported(fibers):
    runtime = made(fibers=fibers)
    values, out = put(runtime, np.arange(8, dtype=np.float32)), runtime.allocate(4, np.float32)
    runtime.launch("copy_16", 1, values[4:], out)
    assert take(runtime, out).tolist() == [4, 5, 6, 7]
    runtime.launch("copy_16", 1, values[1:], out)
    with pytest.raises(KernelError, match=r"plain.cu:\d+: an address is null, or not aligned"):
        runtime.wait(runtime.mark(COMPUTE))


def test_a_null_pointer_is_reported(runtime):
    runtime.launch("number", 1, np.uint64(0), np.int64(1))
    with pytest.raises(KernelError, match=r"number: plain.cu:.* null"):
        runtime.wait(runtime.mark(COMPUTE))


def test_a_source_that_the_compiler_refuses_is_reported_by_file_and_line():
    with pytest.raises(KernelError, match=r"wrong.cu:2:\d+: error"):
        build(cuda('#line 1 "wrong.cu"\n\nKERNEL k(int32* a) { a[0] = b; }\n'))
    with pytest.raises(KernelError, match="k: parameter a: no kernel takes const double a"):
        build(cuda("KERNEL k(const double a) {}"))


@pytest.mark.parametrize("place, side", [(-1, "before its beginning"), (5, "behind its end")])
def test_a_write_out_of_bounds_names_the_allocation(place, side):
    runtime = made()
    first, out = runtime.allocate(100, np.int64), runtime.allocate(5, np.int32)
    runtime.launch("store_at", 1, out, np.int64(place))
    with pytest.raises(KernelError, match=rf"allocation 2, \(5, 1\) int32: written {side}"):
        runtime.wait(runtime.mark(COMPUTE))
    assert len(first) == 100


def test_a_write_out_of_bounds_is_found_in_memory_given_back():
    runtime = made()
    out = runtime.allocate(5, np.int32)
    runtime.launch("store_at", 1, out, np.int64(6))
    del out
    with pytest.raises(KernelError, match=r"allocation 1, .* written behind its end"):
        runtime.wait(runtime.mark(COMPUTE))

"""The emulated GPU's kernels: what runs, and that what is wrong with one is found."""

import gc
import shutil

import numpy as np
import pytest

from embstore.device.runtime import COMPUTE
from embstore.kernels.sources import VERBS, kernels_of, source
from embstore.optimizers import OPTIMIZERS
from tests.kernels.emulation import build as builder
from tests.kernels.emulation.build import KernelError, build, declarations
from tests.kernels.emulation.runtime import GARBAGE, EmulatedRuntime
from tests.kernels.emulation.samples import PLAIN, SOURCES, cuda, made, put, take

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


def test_every_kernel_of_embstore_is_built():
    runtime = EmulatedRuntime()
    runtime.compile(VERBS)
    for verb in VERBS:
        assert tuple(d.name for d in declarations(source(verb))) == kernels_of(verb)
    assert runtime.facts()["compile_seconds"] > 0


def test_kernels_of_embstore_without_barriers_are_plain():
    """Also those of a file that has others, with barriers."""
    apply = {d.name: d.waits for d in declarations(source("apply"))}
    assert apply == {
        f"apply_{kind}": optimizer.row_formula is not None for kind, optimizer in OPTIMIZERS.items()
    }


def test_what_waits_is_told_from_the_source():
    waits = {d.name: d.waits for text in SOURCES.values() for d in declarations(text)}
    assert not waits["number"] and not waits["atomics"]
    assert waits["sum_rows"] and waits["shuffles"] and waits["sum_block"]
    in_macro = cuda("#define SYNC __syncthreads()\nKERNEL k(int32* a) { SYNC; a[0] = 1; }")
    assert [d.waits for d in declarations(in_macro)] == [True]


@pytest.mark.parametrize("fibers", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 7, 64])
def test_every_thread_of_every_block_runs_once(blocks, fibers):
    runtime = made(fibers=fibers)
    out = put(runtime, np.full(1000, -1, np.int32))
    runtime.launch("number", blocks, out, np.int64(1000))
    assert take(runtime, out).tolist() == list(range(1000))


@pytest.mark.parametrize("fibers", [False, True])
def test_the_seed_decides_the_order_of_threads(fibers):
    def order(seed):
        runtime = made(seed=seed, fibers=fibers)
        out, count = put(runtime, np.zeros(256, np.int32)), put(runtime, np.zeros(1, np.int32))
        runtime.launch("order", 1, out, count)
        return take(runtime, out).tolist()

    assert sorted(order(0)) == list(range(256)) != order(0)
    assert order(0) == order(0) != order(1)


def test_shuffles_and_ballots_are_those_of_32_lanes(runtime):
    values = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, 256)
    lanes = values.reshape(8, 32)
    out = runtime.allocate(768, np.int64)
    runtime.launch("shuffles", 1, put(runtime, values), out)
    found = take(runtime, out).reshape(3, 8, 32)
    assert (found[0, :, :29] == lanes[:, 3:]).all()
    assert (found[0, :, 29:] == lanes[:, 29:]).all()
    assert (found[1] == lanes[:, ::-1]).all()
    ballots = ((lanes & 1) << np.arange(32)).sum(1)
    assert (found[2] == ballots[:, None]).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_warp_sums_a_row_in_the_order_of_the_contract(seed):
    runtime = made(seed=seed)
    rows = np.random.default_rng(seed).standard_normal((50, 32)).astype(np.float32)
    sums = runtime.allocate(50, np.float32)
    runtime.launch("sum_rows", 3, put(runtime, rows), sums, np.int64(50))
    expected = rows
    for width in (16, 8, 4, 2, 1):
        expected = expected[:, :width] + expected[:, width:]
    assert take(runtime, sums).view(np.uint32).tolist() == expected.view(np.uint32).ravel().tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_block_sums_in_shared_memory(seed):
    runtime = made(seed=seed)
    values = np.random.default_rng(seed).integers(0, 1000, (20, 256), np.int32)
    out = runtime.allocate(20, np.int32)
    runtime.launch("sum_block", 20, put(runtime, values), out)
    assert take(runtime, out).tolist() == values.sum(1).tolist()


def test_shared_memory_is_garbage_in_every_block(runtime):
    out = runtime.allocate(512, np.uint8)
    runtime.launch("read_shared", 2, out)
    assert (take(runtime, out) == GARBAGE).all()


def test_scalars_arrive_as_they_are(runtime):
    out = runtime.allocate(5, np.float32)
    scalars = np.int64(-(1 << 40)), np.uint64(1 << 63), np.int32(-5), np.uint32(1 << 31)
    runtime.launch("scalars", 1, *scalars, np.float32(-0.5), out)
    assert take(runtime, out).tolist() == [-(2.0**40), 2.0**63, -5, 2.0**31, -0.5]


def test_floats_are_rounded_once_in_each_operation(runtime):
    x = np.array([1 + 2**-12, 1 + 2**-12, -1 - 2**-11], np.float32)  # a fused one gives 2^-24
    out = runtime.allocate(3, np.float32)
    runtime.launch("arithmetic", 1, put(runtime, x), out)
    expected = [x[0] * x[1] + x[2], np.sqrt(x[0]), np.nextafter(x[0], np.float32(2))]
    assert take(runtime, out).tolist() == expected
    assert expected[0] == 0


def test_whole_number_intrinsics(runtime):
    a, b = 0x9000_0000_00F0_0000, 0xC000_0000_8000_0001
    out = runtime.allocate(7, np.uint64)
    runtime.launch("whole_numbers", 1, put(runtime, np.array([a, b], np.uint64)), out)
    low = (0xF00000 * (b & 0xFFFFFFFF)) >> 32
    assert take(runtime, out).tolist() == [4, 21, 8, low, a * b >> 64, a, b]


@pytest.mark.parametrize("fibers", [False, True])
def test_atomics_are_whole(fibers):
    runtime = made(fibers=fibers)
    cells, least = put(runtime, np.zeros(3, np.uint64)), put(runtime, np.zeros(2, np.int64))
    runtime.launch("atomics", 4, cells, least)
    first, copied, count = take(runtime, cells).tolist()
    assert first == copied > 0 and count == 2048
    assert take(runtime, least).tolist() == [-7, 255]


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

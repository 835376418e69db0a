"""The emulated GPU itself: what it lets through, and that it finds what it is there to find."""

import gc
import shutil

import numpy as np
import pytest

from embstore.device.runtime import COMPUTE, DOWN, UP, DeviceArray, Runtime
from embstore.errors import CapacityError, DeviceError
from embstore.kernels.sources import VERBS, kernels_of, source
from tests.kernels.emulation import build as builder
from tests.kernels.emulation.build import KernelError, build, declarations
from tests.kernels.emulation.runtime import GARBAGE, EmulatedRuntime

if shutil.which(builder.COMPILER) is None:
    pytest.skip(f"needs {builder.COMPILER}", allow_module_level=True)

TYPES = """
typedef long long int64;
typedef unsigned long long uint64;
typedef int int32;
typedef unsigned int uint32;
typedef unsigned char uint8;
#define BLOCK_THREADS 256
#define ALL 0xffffffffu
"""

PLAIN = """
#line 1 "plain.cu"
KERNEL number(int32* out, const int64 n) {
    int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = static_cast<int32>(i);
}
KERNEL order(int32* out, int32* count) { out[atomicAdd(count, 1)] = threadIdx.x; }
KERNEL add_by_two_steps(uint32* count, uint32* arrived) {
    uint32 old = *count;
    atomicAdd(arrived, 1u);
    *count = old + 1;
}
KERNEL scalars(const int64 a, const uint64 b, const int32 c, const uint32 d, const float e,
               float* __restrict__ out) {
    if (threadIdx.x) return;
    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e;
}
KERNEL copy_16(const float4* __restrict__ source, float4* target) { target[0] = source[0]; }
KERNEL store_at(int32* out, const int64 place) { if (threadIdx.x == 0) out[place] = 1; }
KERNEL arithmetic(const float* x, float* out) {
    if (threadIdx.x) return;
    out[0] = x[0] * x[1] + x[2];
    out[1] = sqrtf(x[0]);
    out[2] = __uint_as_float(__float_as_uint(x[0]) + 1);
}
KERNEL whole_numbers(const uint64* x, uint64* out) {
    if (threadIdx.x) return;
    out[0] = __popc(static_cast<uint32>(x[0]));
    out[1] = __ffs(static_cast<int32>(x[0]));
    out[2] = __clz(static_cast<int32>(x[0]));
    out[3] = __umulhi(static_cast<uint32>(x[0]), static_cast<uint32>(x[1]));
    out[4] = __umul64hi(x[0], x[1]);
    out[5] = min(x[0], x[1]);
    out[6] = max(x[0], x[1]);
}
KERNEL atomics(uint64* cells, int64* least) {
    atomicMin(&least[0], static_cast<int64>(threadIdx.x) - 7);
    atomicMax(&least[1], static_cast<int64>(threadIdx.x));
    if (atomicCAS(&cells[0], 0ull, threadIdx.x + 1ull) == 0) cells[1] = threadIdx.x + 1;
    atomicAdd(&cells[2], 2ull);
}
KERNEL overflow(int32* out) { out[threadIdx.x] = 0x7fffffff + static_cast<int32>(threadIdx.x); }
"""

WAITING = """
#line 1 "waiting.cu"
__device__ __forceinline__ float of_warp(float value) {
    for (int32 delta = 16; delta > 0; delta >>= 1) value += __shfl_down_sync(ALL, value, delta);
    return __shfl_sync(ALL, value, 0);
}
KERNEL sum_rows(const float* rows, float* sums, const int64 n) {
    int64 warps = static_cast<int64>(gridDim.x) * 8;
    for (int64 row = blockIdx.x * 8ll + threadIdx.x / 32; row < n; row += warps) {
        float sum = of_warp(rows[row * 32 + threadIdx.x % 32]);
        if (threadIdx.x % 32 == 5) sums[row] = sum;
    }
}
KERNEL shuffles(const int64* values, int64* out) {
    int64 value = values[threadIdx.x];
    out[threadIdx.x] = __shfl_down_sync(ALL, value, 3);
    out[256 + threadIdx.x] = __shfl_sync(ALL, value, 31 - threadIdx.x % 32);
    out[512 + threadIdx.x] = __ballot_sync(ALL, value & 1);
    __syncwarp();
}
KERNEL sum_block(const int32* values, int32* out) {
    __shared__ int32 parts[BLOCK_THREADS];
    parts[threadIdx.x] = values[blockIdx.x * BLOCK_THREADS + threadIdx.x];
    __syncthreads();
    for (uint32 half = BLOCK_THREADS / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}
KERNEL forget_the_barrier(int32* out) {
    __shared__ int32 parts[BLOCK_THREADS];
    parts[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = parts[255 - threadIdx.x];
}
KERNEL read_shared(uint8* out) {
    __shared__ uint8 memory[BLOCK_THREADS];
    __syncthreads();
    out[blockIdx.x * BLOCK_THREADS + threadIdx.x] = memory[threadIdx.x];
    memory[threadIdx.x] = 1;
}
KERNEL leave_early(int32* out) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    out[0] = 1;
}
KERNEL part_at_barriers(int32* out) {
    if (threadIdx.x < 64) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[0] = 1;
}
KERNEL part_in_warp(int32* out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(ALL, 1, 0);
}
KERNEL outside_shared(int32* out) {
    __shared__ int32 parts[BLOCK_THREADS];
    parts[threadIdx.x + 1] = 0;
    __syncthreads();
    out[threadIdx.x] = parts[threadIdx.x];
}
"""

LAST_LINE = len(PLAIN.splitlines()) - 2  # of plain.cu, which begins behind two lines


def cuda(text):
    return TYPES + text.replace(
        "KERNEL", 'extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)'
    )


SOURCES = {"plain": cuda(PLAIN), "waiting": cuda(WAITING)}


@pytest.fixture
def runtime():
    runtime = made()
    yield runtime
    runtime.close()
    gc.collect()
    assert runtime.live_bytes == 0, "an allocation was not given back"


def made(**options):
    return EmulatedRuntime(sources=SOURCES, **options)


def put(runtime, values):
    array = runtime.allocate(values.size, values.dtype)
    runtime.upload(values, array)
    return array


def take(runtime, array):
    out = np.empty(len(array) * array.width, array.dtype)
    runtime.download(array, out)
    runtime.wait(runtime.mark(COMPUTE))
    return out


# Kernels


def test_every_kernel_of_embstore_is_built():
    runtime = EmulatedRuntime()
    runtime.compile(VERBS)
    for verb in VERBS:
        assert [d.name for d in declarations(source(verb))] == kernels_of(verb)
    assert runtime.facts()["compile_seconds"] > 0


def test_kernels_of_embstore_without_barriers_are_plain():
    """Also those of a file that has others, with barriers."""
    apply = {d.name: d.waits for d in declarations(source("apply"))}
    assert apply == {
        "apply_sgd": False,
        "apply_adagrad": False,
        "apply_adam": False,
        "apply_rowwise_adagrad": True,
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


def test_fill_and_accumulate(runtime):
    sums = put(runtime, np.array([5, 3, 5, 0, 3], np.int32))
    runtime.accumulate(sums, sums)
    assert take(runtime, sums).tolist() == [5, 8, 13, 13, 16]
    runtime.fill(sums, 0x7F)
    assert take(runtime, sums).tolist() == [0x7F7F7F7F] * 5


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

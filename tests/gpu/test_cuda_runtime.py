"""Every method of the CUDA runtime against NumPy, and what its failures are."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embstore.device.gpu import GpuDevice
from embstore.device.gpu_positions import by_id
from embstore.device.gpu_work import GpuBatch
from embstore.device.runtime import COMPUTE, DOWN, UP, DeviceArray
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.kernels.sources import VERBS

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
COUNTS = (1, 1000, 1_050_000)


def placed(runtime, array):
    """Return the elements of a host array in the device's memory."""
    width = array.shape[1] if array.ndim == 2 else 1
    target = runtime.allocate(len(array), array.dtype, width=width)
    runtime.upload(array, target)
    return target


def read(runtime, array):
    """Return the elements of a device's array, all widths in a row."""
    out = np.zeros(array.count * array.width, array.dtype)
    runtime.download(array, out)
    runtime.wait(runtime.mark(COMPUTE))
    return out


def test_allocations_are_aligned_and_slices_share_them(runtime):
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    array = placed(runtime, values)
    assert array.address % 256 == 0
    assert (len(array), array.width, array.nbytes) == (20, 3, 240)
    assert read(runtime, array[4:9]).tolist() == values[4:9].reshape(-1).tolist()
    assert read(runtime, array.view(np.uint8)).tobytes() == values.tobytes()


@pytest.mark.parametrize("up", [COMPUTE, UP])
@pytest.mark.parametrize("down", [COMPUTE, DOWN])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_copies_arrive_in_every_stream(runtime, up, down, pinned, count):
    values = np.random.default_rng(count).integers(0, 256, 4 * count, np.uint8)
    source, out = values.copy(), np.zeros_like(values)
    if pinned:
        source, out = runtime.allocate_host(len(values)), runtime.allocate_host(len(values))
        source[:], out[:] = values, 0
    array = runtime.allocate(len(values), np.uint8)
    runtime.upload(source, array, stream=up)
    if not pinned:
        source[:] = 0  # it is free again at once
    runtime.follow(down, runtime.mark(up))
    runtime.download(array, out, stream=down)
    runtime.wait(runtime.mark(down))
    assert np.array_equal(out, values)


def test_streams_follow_each_other(runtime):
    count = 4 << 20
    source, out = runtime.allocate_host(count), runtime.allocate_host(count)
    first, second = (runtime.allocate(count, np.uint8) for _ in range(2))
    for number in range(20):
        source[:] = number
        runtime.upload(source, first, stream=UP)
        runtime.follow(COMPUTE, runtime.mark(UP))
        runtime.copy(first, second)
        runtime.follow(DOWN, runtime.mark(COMPUTE))
        runtime.download(second, out, stream=DOWN)
        runtime.wait(runtime.mark(DOWN))
        assert (out == number).all()


def test_copy_and_fill_write_all_bytes_and_no_others(runtime):
    values = np.arange(3000, dtype=np.int64)
    array, target = placed(runtime, values), placed(runtime, np.zeros(3000, np.int64))
    runtime.copy(array[10:20], target[5:15])
    runtime.fill(target[100:200], 0xFF)
    wanted = np.zeros(3000, np.int64)
    wanted[5:15], wanted[100:200] = values[10:20], -1
    assert read(runtime, target).tolist() == wanted.tolist()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("id_count", [1, 8, 1 << 20, 1 << 31])
def test_sort_is_stable_and_leaves_the_ids(runtime, count, id_count):
    id_count = min(id_count, count)
    ids = np.random.default_rng(id_count).integers(0, id_count, count).astype(np.int32)
    array, findings = placed(runtime, ids), placed(runtime, np.array([id_count, *[0] * 7]))
    batch, device = GpuBatch(array, array, np.array([0, count])), GpuDevice(runtime, 1)
    _, positions, _ = by_id(device.work, batch, findings)
    device.work.runtime.submit()
    assert np.array_equal(read(runtime, positions), np.argsort(ids, kind="stable"))
    assert np.array_equal(read(runtime, array), ids)


def test_a_kernel_takes_arrays_and_scalars(runtime):
    values = np.arange(5000, dtype=np.int64) * 7
    ids = np.random.default_rng(5).permutation(5000).astype(np.int32)
    out = runtime.allocate(5000, np.int64)
    d_values, d_ids = placed(runtime, values), placed(runtime, ids)
    wanted = np.zeros(5000, np.int64)
    wanted[ids[:4000]] = values[:4000]
    for blocks in (1, 20):
        runtime.fill(out, 0)
        runtime.launch("put_slots", blocks, out, d_ids, d_values, np.int64(4000))
        assert np.array_equal(read(runtime, out), wanted)


def test_nothing_is_done_with_no_elements(runtime):
    empty = runtime.allocate(0, np.int32)
    runtime.upload(np.empty(0, np.int32), empty)
    runtime.copy(empty, empty)
    runtime.fill(empty, 1)
    assert read(runtime, empty).size == 0


def test_facts_tell_the_device(runtime):
    runtime.compile(VERBS)
    facts = runtime.facts()
    assert facts["model"] and facts["driver_version"] and facts["runtime_version"]
    assert 0 < facts["memory_free_bytes"] <= facts["memory_bytes"]
    assert facts["multiprocessors"] > 0 and facts["compile_seconds"] > 0


def test_allocations_are_given_back_with_their_last_array(runtime):
    size = 1 << 30
    before = runtime.facts()["memory_free_bytes"]
    array = runtime.allocate(size, np.uint8)
    part = array[10:20]
    del array
    assert runtime.facts()["memory_free_bytes"] <= before - size
    del part
    assert runtime.facts()["memory_free_bytes"] > before - size


def test_memory_that_is_not_there_is_a_capacity_error_and_no_loss(runtime):
    wanted = 2 * runtime.facts()["memory_bytes"]
    with pytest.raises(CapacityError, match=str(wanted)):
        runtime.allocate(wanted, np.uint8)
    assert not runtime.is_lost
    values = np.arange(1000, dtype=np.int32)
    assert np.array_equal(read(runtime, placed(runtime, values)), values)


def test_no_such_device_is_the_callers_mistake(gpu):
    from embstore.device.cuda import device_count, open_runtime

    with pytest.raises(InvalidArgumentError, match=str(device_count())):
        open_runtime(device_count())


def test_arrays_of_callers_are_adopted_where_they_are(runtime):
    import cupy

    given = cupy.arange(12, dtype=cupy.float32).reshape(4, 3)
    array = runtime.adopt(given, np.float32)
    assert (array.address, len(array), array.width) == (given.data.ptr, 4, 3)
    assert read(runtime, array).tolist() == list(range(12))
    for wrong in (given.T, given.astype(cupy.float64), given[None]):
        with pytest.raises(InvalidArgumentError):
            runtime.adopt(wrong, np.float32)


LOSING = """
import os
import numpy as np
from embstore.device.cuda import open_runtime
from embstore.device.runtime import COMPUTE, DeviceArray
from embstore.errors import DeviceError

runtime = open_runtime(0)
ids = runtime.allocate(256, np.int32)
runtime.fill(ids, 0)
nowhere = DeviceArray(8, 256, np.int64, None)
calls = [
    lambda: runtime.wait(runtime.mark(COMPUTE)),
    lambda: runtime.allocate(16, np.uint8),
    lambda: runtime.launch("put_slots", 1, nowhere, ids, nowhere, np.int64(256)),
]
runtime.launch("put_slots", 1, nowhere, ids, nowhere, np.int64(256))
for call in calls:
    try:
        call()
    except DeviceError:
        print("DeviceError", runtime.is_lost, flush=True)
os._exit(0)  # a lost device's memory cannot be given back
"""


def test_an_illegal_address_loses_the_device(gpu):
    done = subprocess.run(
        [sys.executable, "-c", LOSING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split("\n")[:3] == ["DeviceError True"] * 3, done.stdout + done.stderr


def test_a_slice_of_no_elements_has_no_bytes():
    array = DeviceArray(4096, 10, np.int64, None)
    assert array[7:3].nbytes == 0 and array[10:].nbytes == 0

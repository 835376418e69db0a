"""The GPU device's memory, and how often the host waits."""

import gc

import numpy as np
import pytest

import embstore
from embstore.device import staging
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_memory import RESERVE_BYTES
from embstore.errors import CapacityError, InvalidArgumentError
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.gpu_samples import SEED, everything, expected, made
from tests.kernels.samples import contents_of, down, records, slots_with, up, wide

# Memory


def test_calls_leave_no_memory_behind():
    device = made()
    runtime = device.runtime
    seen = []
    for _ in range(6):
        assert everything(device) == expected()
        gc.collect()
        seen.append(runtime.live_bytes)
    assert len(set(seen[staging.BUFFERS - 1 :])) == 1, seen
    scratch_bytes = device.facts()["scratch_bytes"]
    assert 0 < scratch_bytes <= seen[-1]
    device.close()
    gc.collect()
    assert runtime.live_bytes < seen[-1] - scratch_bytes + 1
    del device
    gc.collect()
    assert runtime.live_bytes == 0


def test_slots_without_memory_are_refused_and_stay_as_they_were():
    device = made(memory_bytes=200_000)
    rows = records(np.random.default_rng(SEED), 64, 64)
    memory = slots_with(device, rows, keys=np.arange(64), scores=np.arange(64), slab_slots=64)
    before = contents_of(device, memory, 64)
    with pytest.raises(CapacityError):
        device.memory.add_slots(memory, 64, 64 * 20)
    assert contents_of(device, memory, 64) == before
    live = device.runtime.live_bytes
    device.memory.add_slots(memory, 64, 64 * 4)
    device.memory.drop_slots(memory, 64, 64 * 4)
    gc.collect()
    assert device.runtime.live_bytes <= live
    assert contents_of(device, memory, 64) == before


def test_slabs_that_cannot_be_split_for_want_of_memory_stay_as_they_were():
    device = made()
    rows = records(np.random.default_rng(SEED), 64, 64)
    memory = slots_with(device, rows, keys=np.arange(64), scores=np.arange(64), slab_slots=32)
    before = contents_of(device, memory, 64)
    device.work.scratch.clear()  # what is kept would be given back for the pieces
    device.runtime.memories.bytes_max = device.runtime.live_bytes + 5_000
    with pytest.raises(CapacityError):
        device.memory.reserve_slots(memory, 64, 64, 4)
    device.runtime.memories.bytes_max = None
    assert contents_of(device, memory, 64) == before
    device.memory.reserve_slots(memory, 64, 64, 4)
    assert contents_of(device, memory, 64) == before


def test_memory_kept_for_calls_gives_way_to_what_is_needed():
    device = made(memory_bytes=1 << 20)
    up(device, np.zeros(60_000, np.int64))  # kept as scratch from here on
    assert device.facts()["scratch_bytes"] >= 480_000
    larger = up(device, np.ones(100_000, np.int64))
    assert down(device, larger).sum() == 100_000
    with pytest.raises(CapacityError):
        up(device, np.zeros(100_000, np.int64))
    assert down(device, larger).sum() == 100_000


def test_a_budget_leaves_room_for_calls():
    total = RESERVE_BYTES + 1_000_000
    device = made(memory_bytes=total)
    device.memory.check_budget(1_000_000, 0)
    with pytest.raises(CapacityError, match=rf"cache_bytes is 1000001; .* of {total} in all"):
        device.memory.check_budget(1_000_001, 0)
    memory = device.memory.allocate_slots(wide(4))
    device.memory.reserve_slots(memory, 0, 1024, 1024)
    device.memory.add_slots(memory, 0, 1024)
    held = device.runtime.live_bytes
    device.memory.check_budget(1_000_000, held)
    with pytest.raises(CapacityError):
        device.memory.check_budget(1_000_000, 0)


def test_a_cache_may_be_a_share_of_what_is_free_beside_calls(tmp_path):
    runtime = EmulatedRuntime(memory_bytes=RESERVE_BYTES + 1_000_000)
    kept = runtime.allocate(200_000, np.uint8)  # somebody else's
    with embstore.open(tmp_path, device=GpuDevice(runtime), cache_bytes="50%") as store:
        assert store.cache_bytes == 400_000
    assert len(kept)


@pytest.mark.parametrize("wrong", ["0%", "101%", "half", "80"])
def test_what_is_no_share_is_refused(tmp_path, wrong):
    with pytest.raises(InvalidArgumentError, match=f"80%.*{wrong}"):
        embstore.open(tmp_path, cache_bytes=wrong)

"""What of the CPU device is no kernel: its memory, its threads, and its check of them."""

import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from embstore.arithmetic import denormals
from embstore.device.cpu import CpuDevice
from embstore.device.values import Gradients
from embstore.errors import DeviceError, InvalidArgumentError
from embstore.host.memory import HUGE_PAGE_BYTES, release
from embstore.host.workers import Workers
from tests.kernels.samples import batch_of, bits, cpu_devices, parameters, wide
from tests.unit.flushing import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, in_new_thread, needs_glibc


def resident_bytes():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * mmap.PAGESIZE


def test_rows_take_memory_when_written_and_give_it_back():
    device = cpu_devices()[0]
    rows = device.memory.allocate_rows(1 << 30, wide(64))  # 256 GiB of address space
    assert rows.shape == (1 << 30, 64)
    assert rows.dtype == np.float32
    assert rows.ctypes.data % HUGE_PAGE_BYTES == 0
    before = resident_bytes()
    slot_count = (64 << 20) // 256
    rows[:slot_count] = 1
    assert resident_bytes() - before > 60 << 20
    release(rows[8 : slot_count - 8])
    assert resident_bytes() - before < 8 << 20
    assert (rows[:8] == 1).all()
    assert (rows[slot_count - 8 : slot_count] == 1).all()
    assert (rows[16 : slot_count - 16] == 0).all()


def test_release_of_less_than_a_page_changes_nothing():
    rows = cpu_devices()[0].memory.allocate_rows(100, wide(4))
    rows[:] = 1
    release(rows[10:20])
    assert (rows == 1).all()


def test_workers_return_results_in_order_and_share_the_ranges():
    workers = Workers(3)
    ranges = [(i, i + 1) for i in range(50)]
    together = threading.Barrier(3)

    def work(low, high):
        if low < 3:
            together.wait(300)  # three threads are at work at once, or this fails
        return low * high

    assert workers.run(work, ranges) == [low * high for low, high in ranges]
    workers.close()
    workers.close()
    assert workers.run(lambda low, high: low, [(4, 5), (6, 7)]) == [4, 6]
    workers.close()


def test_a_call_has_as_many_ranges_as_its_bytes_pay_for():
    workers = Workers(16, 2)
    lengths = [len(workers.ranges(count, 1 << 10)) for count in (1 << 9, 1 << 10, 1 << 12, 1 << 16)]
    assert lengths == [1, 4, 16, 32]
    assert len(Workers(1).ranges(1 << 16, 1 << 10)) == 1


@pytest.mark.parametrize("raised, expected", [
    (ZeroDivisionError("no"), DeviceError),
    (InvalidArgumentError("no"), InvalidArgumentError),
])  # fmt: skip
def test_an_error_in_any_thread_reaches_the_caller(raised, expected):
    workers = Workers(2)

    def work(low, high):
        if low == 3:
            raise raised

    with pytest.raises(expected, match="no"):
        workers.run(work, [(i, i + 1) for i in range(4)])
    assert workers.run(lambda low, high: high, [(0, 1), (1, 2)]) == [1, 2]
    workers.close()


def test_close_ends_the_threads():
    device = CpuDevice(3)
    device.work.split_bytes = 0
    count = threading.active_count()
    device.rows.read_rows(np.zeros((8, 4), np.float32), np.arange(8))
    assert threading.active_count() == count + 2
    device.close()
    assert threading.active_count() == count


def test_facts_name_the_processor_its_memory_and_the_threads():
    facts = cpu_devices()[1].facts()
    assert facts["model"] and facts["threads"] == 2
    assert 0 < facts["memory_free_bytes"] <= facts["memory_bytes"]


def test_dropped_slots_give_their_memory_back():
    """With the pages that they share with slots dropped before."""
    device = cpu_devices()[0]
    slot_count = (64 << 20) // 256
    memory = device.memory.allocate_slots(wide(64))
    device.memory.reserve_slots(memory, 0, 1 << 30, slot_count)
    device.memory.add_slots(memory, 0, slot_count)
    before = resident_bytes()
    memory.rows[:slot_count] = 1
    for high in range(slot_count, 8, -(slot_count // 3)):
        device.memory.drop_slots(memory, max(high - slot_count // 3, 8), high)
    assert resident_bytes() - before < 8 << 20
    assert (memory.rows[:8] == 1).all()


TINY = np.arange(1, 33, dtype=np.uint32).view(np.float32).reshape(8, 4)  # denormals


def sums_on(device):
    batch, sums = batch_of(device, np.arange(8)), np.empty((8, 4), np.float32)
    device.rows.sum_by_key(batch, [Gradients(TINY)], np.float32(1), sums)
    return sums


def applies_on(device):
    memory, keys = device.memory.allocate_slots(wide(4)), np.arange(8)
    device.memory.reserve_slots(memory, 0, 8, 8)
    given = parameters(1, scalars=np.ones((1, 8), np.float32))
    device.rows.apply("sgd", memory, keys, keys, -TINY, given)
    return memory.rows[:8].copy()


def pools_on(device):
    offsets = np.arange(9)
    batch, out = batch_of(device, np.arange(8)), np.empty((8, 4), np.float32)
    device.rows.gather_pooled(TINY, np.arange(8), batch, offsets, False, np.ones(8, "f4"), out)
    return out


def initializes_on(device):
    keys, out = np.arange(8), np.ones((8, 4), np.float32)
    tiny = np.array([[TINY[0, 0], TINY[7, 3]]])
    given = parameters(1, initializer_kinds=np.ones(1, np.int8), initializer_values=tiny)
    device.rows.initialize(out, keys, keys, given, wide(4))
    return out


@needs_glibc
@pytest.mark.parametrize("call", [sums_on, applies_on, pools_on, initializes_on])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("is_told", [True, False])
def test_threads_that_flush_denormals_keep_them_for_a_call(call, threads, is_told, monkeypatch):
    """Workers inherit the register of the thread that starts them, here one that flushes. What
    cannot be told to keep them is refused."""
    expected = call(cpu_devices()[0])  # compiles, if it must, in a thread that is as usual
    if not is_told:
        monkeypatch.setattr(denormals, "_libm", lambda: None)

    def flushing():
        device = CpuDevice(threads)
        device.work.split_bytes = 0
        try:
            return call(device)
        finally:
            device.close()

    outcome = in_new_thread(flushing, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO)
    if is_told:
        assert bits(outcome) == bits(expected)
        assert np.count_nonzero(expected.view(np.uint32)) > 20  # they are no zeros
    else:
        assert isinstance(outcome, DeviceError)

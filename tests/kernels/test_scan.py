"""Running sums on the GPU device: NumPy's, whatever ranges the values are cut into."""

import numpy as np
import pytest

from embstore.device import gpu_work
from embstore.device.gpu_work import SCAN_STEP, SCAN_STEPS_LEAST, GpuWork
from tests.kernels.emulation.runtime import EmulatedRuntime

RANGE = SCAN_STEPS_LEAST * SCAN_STEP
"""Values of a block, where they are not too many."""
COUNTS = (0, 1, 3, 4, SCAN_STEP - 1, RANGE - 1, RANGE, RANGE + 1, 5 * RANGE + 7)


@pytest.mark.parametrize("fibers", [False, True])
@pytest.mark.parametrize("ranges_max", [1, 2, 3, 1024])
@pytest.mark.parametrize("count", COUNTS)
def test_accumulate_is_a_running_sum(monkeypatch, count, ranges_max, fibers):
    monkeypatch.setattr(gpu_work, "SCAN_RANGES_MAX", ranges_max)
    work = GpuWork(EmulatedRuntime(seed=count, fibers=fibers), 1)
    values = np.random.default_rng(count).integers(-1000, 1000, count).astype(np.int32)
    d_values = work.upload(values)
    work.accumulate(d_values)
    assert np.array_equal(work.download(d_values), np.cumsum(values, dtype=np.int32))


def test_a_thread_adds_up_the_totals_of_many_ranges():
    """More ranges before the last than a block has threads."""
    work, count = GpuWork(EmulatedRuntime(), 1), 300 * RANGE + 5
    d_values = work.upload(np.ones(count, np.int32))
    work.accumulate(d_values)
    assert np.array_equal(work.download(d_values), np.arange(1, count + 1))

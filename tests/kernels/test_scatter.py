"""scatter_rows: copies, except that every NaN becomes the canonical one."""

import numpy as np
import pytest

from embstore.arithmetic import canonicalize_nans
from embstore.device import gpu_rows
from tests.kernels.samples import awkward, bits, devices, records, rows_in, slots_with, wide

SEED = 4


@pytest.mark.parametrize("stride", [4, 8, 16, 68, 4100])
def test_scatter_writes_the_named_records_and_no_other(stride):
    rng = np.random.default_rng(SEED)
    source = awkward(rng, 45, stride, finite=False)
    source.flags.writeable = False
    before, slots = records(rng, 60, stride), rng.permutation(60)[:45]
    canonical = source.copy()
    canonicalize_nans(canonical)
    expected = before.copy()
    expected[slots] = canonical
    for device in devices():
        memory = slots_with(device, before)
        device.rows.scatter_rows(source, memory.rows, slots)
        assert bits(rows_in(device, memory, 60)) == bits(expected)


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_records_without_a_slot_are_passed_over_in_any_piece(monkeypatch, piece_bytes):
    monkeypatch.setattr(gpu_rows, "PIECE_BYTES", piece_bytes)
    rng = np.random.default_rng(SEED)
    source, before = records(rng, 45, 8), records(rng, 60, 8)
    slots = np.where(rng.random(45) < 0.4, -1, rng.permutation(60)[:45])
    expected = before.copy()
    expected[slots[slots >= 0]] = source[slots >= 0]
    for device in devices():
        memory = slots_with(device, before)
        device.rows.scatter_rows(source, memory.rows, slots)
        assert bits(rows_in(device, memory, 60)) == bits(expected)


def test_staging_is_filled_and_scattered_time_after_time():
    """More often than there are buffers, of lengths that grow and fall; none is read too late."""
    rng = np.random.default_rng(SEED)
    before = records(rng, 60, 8)
    calls = [(records(rng, n, 8), rng.permutation(60)[:n]) for n in (3, 40, 7, 60, 1, 60, 60, 2)]
    expected = before.copy()
    for source, slots in calls:
        expected[slots] = source
    for device in devices():
        memory = slots_with(device, before)
        for source, slots in calls:
            staged = device.memory.staging(len(source), wide(8))
            assert staged.shape == source.shape and staged.dtype == np.float32
            staged[:] = source
            device.rows.scatter_rows(staged, memory.rows, slots)
        assert bits(rows_in(device, memory, 60)) == bits(expected)


def test_staging_that_is_not_scattered_is_used_again():
    """As when none of a call's rows is stored."""
    before, source = np.zeros((4, 4), np.float32), np.ones((2, 4), np.float32)
    for device in devices():
        memory = slots_with(device, before)
        for _ in range(5):
            device.memory.staging(3, wide(4))[:] = 9
        staged = device.memory.staging(2, wide(4))
        staged[:] = source
        device.rows.scatter_rows(staged, memory.rows, np.array([3, -1]))
        device.rows.scatter_rows(source, memory.rows, np.array([-1, 0]))
        expected = [[1] * 4, [0] * 4, [0] * 4, [1] * 4]
        assert rows_in(device, memory, 4).tolist() == expected


def test_every_kind_of_nan_becomes_the_canonical_one():
    nans = [0x7F800001, 0x7FC00001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF]
    others = [0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF]
    source = np.array([nans + others], np.uint32).view(np.float32)
    for device in devices():
        memory = slots_with(device, np.zeros((1, 12), np.float32))
        device.rows.scatter_rows(source, memory.rows, np.zeros(1, np.int64))
        assert bits(rows_in(device, memory, 1)) == [[0x7FC00000] * 6 + others]

"""gather and gather_rows: copies, bit for bit, by segment."""

import numpy as np
import pytest

from tests.kernels.samples import DIMS, awkward, batch_of, bits, devices

SEED = 3


@pytest.mark.parametrize("dim", DIMS)
def test_gather_copies_the_weights_of_every_position(dim):
    rng = np.random.default_rng(SEED)
    rows = awkward(rng, 40, (dim + 4) // 4 * 4, finite=False)
    keys = [rng.integers(0, 12, n) for n in (0, 50, 1, 0, 33)]
    for device in devices():
        batch = batch_of(device, *keys)
        slots = rng.permutation(40)[: len(batch.unique_keys)]
        outs = [np.empty((len(k), dim), np.float32) for k in keys]
        device.gather(rows, slots, batch, dim, outs)
        expected = rows[slots[batch.inverse], :dim]
        assert bits(np.concatenate(outs)) == bits(expected)


def test_gather_leaves_positions_without_a_slot_alone():
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    for device in devices():
        batch = batch_of(device, np.array([7, 8, 7, 9]))
        out = np.full((4, 4), 5, np.float32)
        device.gather(rows, np.array([1, -1, 0]), batch, 4, [out])
        assert out.tolist() == [[4, 5, 6, 7], [5] * 4, [4, 5, 6, 7], [0, 1, 2, 3]]


@pytest.mark.parametrize("stride", [4, 8, 16, 68, 4100])
def test_gather_rows_copies_whole_records(stride):
    rng = np.random.default_rng(SEED)
    rows = awkward(rng, 60, stride, finite=False)
    slots = rng.integers(0, 60, 45)
    for device in devices():
        out = np.empty((45, stride), np.float32)
        device.gather_rows(rows, slots, out)
        assert bits(out) == bits(rows[slots])

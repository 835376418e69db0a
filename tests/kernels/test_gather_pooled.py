"""gather_pooled: rule 8 of the contract, against the NumPy twin."""

import numpy as np
import pytest

from embstore.arithmetic import pool_rows
from tests.kernels.samples import (
    DIMS,
    awkward,
    batch_of,
    bits,
    devices,
    down,
    gpu_device,
    host_rows,
    slots_with,
    up,
)

SEED = 8


def pooled(device, rows, ids, offsets, mode="sum", weights=None, *, dim, out=None):
    """Pool rows[ids] through slots that are not the ids."""
    padded = np.zeros((len(rows), -(-rows.shape[1] // 4) * 4), np.float32)
    padded[::-1, : rows.shape[1]] = rows
    memory = slots_with(device, padded)
    batch = batch_of(device, np.asarray(ids, np.int64))
    slots = len(rows) - 1 - down(device, batch.unique_keys)
    if out is None:
        out = np.full((len(offsets) - 1, dim), 9, np.float32)
    device.rows.gather_pooled(
        memory.rows, up(device, slots), batch, offsets, mode == "mean", weights, out
    )
    return out


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("mode", ["sum", "mean", "weights"])
def test_bags_are_those_of_the_numpy_twin(dim, mode, finite):
    rng = np.random.default_rng(SEED)
    sizes = [0, 1, 64, 65, 130, 0, 3, 128, 129, 2, 0]
    offsets = np.cumsum([0, *sizes])
    rows = awkward(rng, 50, (dim + 8) // 4 * 4, finite=finite)
    ids = rng.integers(0, 50, offsets[-1])
    weights = awkward(rng, len(ids)) if mode == "weights" else None
    mode = "mean" if mode == "mean" else "sum"
    expected = pool_rows(rows[ids, :dim], offsets, mode, weights)
    for device in devices():
        assert bits(pooled(device, rows, ids, offsets, mode, weights, dim=dim)) == bits(expected)


@pytest.mark.parametrize("dim", [4, 7])
@pytest.mark.parametrize("skipped", [0, 1, 4])
def test_an_output_of_the_device_begins_anywhere(dim, skipped):
    rng, device = np.random.default_rng(SEED), gpu_device()
    rows, ids = awkward(rng, 50, 8), rng.integers(0, 50, 90)
    offsets = np.array([0, 3, 3, 70, 90])
    d_out = device.memory.allocate(4 * dim + skipped, np.float32)[skipped:].view(
        np.float32, width=dim
    )
    pooled(device, rows, ids, offsets, "mean", dim=dim, out=d_out)
    expected = pool_rows(rows[ids, :dim], offsets, "mean", None)
    assert bits(host_rows(device, d_out, dim)) == bits(expected)

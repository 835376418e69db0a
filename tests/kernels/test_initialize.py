"""initialize: rule 10, against the NumPy twin."""

import numpy as np
import pytest

from embstore.arithmetic import initial_rows
from embstore.config import Constant, Normal, Uniform
from embstore.layout import Layout
from tests.kernels.samples import DIMS, bits, devices, parameters, row_keys, rows_in, slots_with

SEED = 12
INITIALIZERS = (Constant(-0.25), Uniform(-0.01, 0.01), Normal(0.5, 0.02))
VALUES = np.array(
    [[-0.25, 0], [-0.01, np.float32(0.01) - np.float32(-0.01)], [0.5, 0.02]], np.float32
)
SEEDS = (7, (1 << 64) - 1, 0x123456789ABCDEF0)


@pytest.mark.parametrize("state_dim", [0, 1, 5])
@pytest.mark.parametrize("dim", DIMS)
def test_records_are_those_of_the_numpy_twin(dim, state_dim):
    rng = np.random.default_rng(SEED)
    stride = (dim + state_dim + 7) // 4 * 4
    tables, slots = np.repeat([0, 1, 2], 9), rng.permutation(40)[:27]
    keys = np.tile([0, 1, 5, (1 << 32) - 1, 1 << 32, (1 << 40) - 1, 12345678901, 2, 3], 3)
    before = np.full((40, stride), np.nan, np.float32)
    expected = before.copy()
    expected[slots] = 0
    for i, slot in enumerate(slots):
        table = tables[i]
        of_key = initial_rows(INITIALIZERS[table], SEEDS[table], keys[i : i + 1], dim)
        expected[slot, :dim] = of_key[0]
        expected[slot, dim : dim + state_dim] = [0, 0.5, 1e-40][table]
    of_tables = parameters(
        3,
        initializer_kinds=np.array([0, 1, 2], np.int8),
        initializer_values=VALUES,
        seeds=np.array(SEEDS, np.uint64),
        initial_state=np.array([0, 0.5, 1e-40], np.float32),
    )
    for device in devices():
        memory, layout = slots_with(device, before), Layout(dim, state_dim, "adam")
        device.rows.initialize(memory.rows, slots, row_keys(tables, keys), of_tables, layout)
        assert bits(rows_in(device, memory, 40)) == bits(expected)

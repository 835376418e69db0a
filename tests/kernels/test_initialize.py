"""initialize: rule 10, against the NumPy twin and the contract's vectors."""

import numpy as np
import pytest

from embstore.arithmetic import initial_rows
from embstore.config import Constant, Normal, Uniform
from tests.kernels.samples import (
    DIMS,
    bits,
    devices,
    from_hex,
    parameters,
    row_keys,
    rows_in,
    slots_with,
)

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
        memory = slots_with(device, before)
        device.initialize(memory.rows, slots, row_keys(tables, keys), of_tables, dim, state_dim)
        assert bits(rows_in(device, memory, 40)) == bits(expected)


@pytest.mark.parametrize("kind, values, expected", [
    (1, (-0.01, np.float32(0.01) - np.float32(-0.01)),
     "bb538884 bb56a4f0 3c00fff6 3b8fbcfe 3a785e50 bba0cc92 bba76ab6 3b660000"),
    (2, (0, 0.02), "bba3f4e6 bc0cf96c 3ce1ad7d 3cb03a85"),
])  # fmt: skip
def test_contract_vectors(kind, values, expected):
    words = from_hex(expected)
    zero = np.zeros(1, np.int64)
    of_table = parameters(
        1,
        initializer_kinds=np.array([kind], np.int8),
        initializer_values=np.array([values], np.float32),
        seeds=np.array([7], np.uint64),
    )
    for device in devices():
        rows = device.allocate_rows(1, len(words))
        device.initialize(rows, zero, zero + 5, of_table, len(words), 0)
        assert bits(device.read_rows(rows, device.upload(zero))) == [words]


def test_nothing_to_initialize():
    none = np.empty(0, np.int64)
    for device in devices():
        memory = slots_with(device, np.ones((1, 4), np.float32))
        device.initialize(memory.rows, none, none, parameters(1), 3, 1)
        assert rows_in(device, memory, 1).tolist() == [[1] * 4]

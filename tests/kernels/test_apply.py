"""apply: rule 4, against the NumPy twin."""

import numpy as np
import pytest

from embstore.arithmetic import apply_update, implementation, update_scalars
from embstore.config import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd
from tests.decayed import DECAYED, name_of
from tests.kernels.samples import (
    DIMS,
    awkward,
    bits,
    contents_of,
    devices,
    parameters,
    row_keys,
    slots_with,
    up,
)

SEED = 10
OPTIMIZERS = (
    Sgd(0.05),
    Adagrad(0.05),
    RowWiseAdagrad(0.05),
    Adam(0.01),
    Ftrl(0.05, beta=1.0, l1=0.9, l2=0.1),
    *DECAYED,
)
KINDS = [name_of(optimizer) for optimizer in OPTIMIZERS]


def table_scalars(optimizer, dim):
    """Return the scalars of three tables that differ in t and rate."""
    steps = [(1, 0.05), (1000, 0.3), (7, 0.0)]
    return np.array([update_scalars(optimizer, t, rate, dim) for t, rate in steps])


@pytest.mark.parametrize("finite", [True, False], ids=["usual", "any"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=KINDS)
def test_updates_are_those_of_the_numpy_twin(optimizer, dim, finite):
    rng = np.random.default_rng(SEED)
    width = dim + optimizer.state_dim(dim)
    before = awkward(rng, 60, (width + 7) // 4 * 4, finite=finite)
    if finite:
        before[:, dim:width] = np.abs(before[:, dim:width])
    slots = rng.permutation(60)[:45]
    tables = np.repeat([0, 1, 2], 15)
    keys = row_keys(tables, np.arange(45))
    g = awkward(rng, 45, dim)
    scalars = table_scalars(optimizer, dim)
    expected = before.copy()
    for table in range(3):
        of_table = slots[tables == table]
        weights, state = expected[of_table, :dim], expected[of_table, dim:width]
        apply_update(optimizer.kind, weights, state, g[tables == table], scalars[table])
        expected[of_table, :dim], expected[of_table, dim:width] = weights, state
    for device in devices():
        memory = slots_with(device, before, keys=np.arange(60), scores=np.arange(60))
        d_slots, d_keys, d_g = (up(device, slots), up(device, keys), up(device, g))
        of_tables = parameters(3, scalars=scalars)
        device.rows.apply(optimizer.kind, memory, d_slots, d_keys, d_g, of_tables)
        rows, *metadata, dirty = contents_of(device, memory, 60)
        assert rows == bits(expected)
        assert metadata == [list(range(60))] * 2
        assert np.flatnonzero(dirty).tolist() == sorted(slots.tolist())


@pytest.mark.parametrize("finite", [True, False], ids=["usual", "any"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=KINDS)
def test_rows_of_a_trainer_are_updated_alike(optimizer, dim, finite):
    rng = np.random.default_rng(SEED)
    weights = awkward(rng, 60, dim, finite=finite)
    state = np.abs(awkward(rng, 60, optimizer.state_dim(dim), finite=finite))
    slots, g = rng.permutation(60)[:45], awkward(rng, 45, dim)
    scalars = update_scalars(optimizer, 7, 0.3, dim)
    wanted = weights.copy(), state.copy()
    taken, of_state = weights[slots], state[slots]
    apply_update(optimizer.kind, taken, of_state, g, scalars)
    wanted[0][slots], wanted[1][slots] = taken, of_state
    for name in ("numpy", "compiled"):
        found = weights.copy(), state.copy()
        implementation(name).update_rows(optimizer.kind, *found, slots, g, scalars)
        assert [bits(part) for part in found] == [bits(part) for part in wanted]

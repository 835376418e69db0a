"""Keys that found no place in a GPU's index: the call after the one that inserted them finds out,
and nobody sees a row that is not what it was."""

from itertools import count

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_keys import GpuKeys
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS, DIM = 2_000, 8


@pytest.fixture
def refusals(monkeypatch):
    """Some insertions leave half of their keys out; return how many keys each was given.

    An index is larger each time, beyond the budget in the end.
    """
    refused, calls, insert = [], count(), GpuKeys.insert

    def some(self, index, keys, slots):
        if next(calls) % 5 or len(keys) < 2:
            return insert(self, index, keys, slots)
        refused.append(len(keys))
        insert(self, index, keys[::2].copy(), slots[::2].copy())
        return lambda: False

    monkeypatch.setattr(GpuKeys, "insert", some)
    return refused


def life(store, seed):
    """Return all that a life of lookups, updates and steps reads, and the digest at its end."""
    rng, found = np.random.default_rng(seed), []
    table = store.create_table(
        "a", dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
    )
    ones = np.ones((200, DIM), np.float32)
    for number in range(40):
        keys = np.minimum(rng.zipf(1.2, 200), ROWS) - 1
        match number % 4:
            case 0:
                found.append(table.lookup(keys))
            case 1:
                table.update(keys, ones)
            case 2:
                found.append(table.lookup_pooled(keys, np.arange(0, 201, 20)))
            case 3:
                found.append(table.lookup(keys, admit=False))
        found.append(table.lookup(keys))
        store.check_integrity()
    batches = [rng.integers(0, ROWS, 60) for _ in range(10)]
    with store.session(tables=["a"], lookahead=3) as run:
        for step in run.steps(batches, keys=lambda batch: {"a": batch}):
            found.append(step.lookup()["a"])
            step.update({"a": found[-1]})
    store.check_integrity()
    return [rows.tobytes() for rows in found], table.digest()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_is_the_same(tmp_path, refusals, seed):
    with embstore.open(tmp_path / "cpu", device="cpu", cache_bytes=1 << 20) as store:
        expected = life(store, seed)
    device = GpuDevice(EmulatedRuntime(), 1)
    budgets = {"cache_bytes": 1 << 20, "host_cache_bytes": 0}
    with embstore.open(tmp_path / "gpu", device=device, **budgets) as store:
        assert life(store, seed) == expected
    assert len(refusals) > 3

"""The shares of several ranks are added on the device, to the bits of the host."""

import numpy as np
import pytest

import embstore
from embstore import InvalidArgumentError, RowWiseAdagrad, Sgd, Uniform
from embstore.device.gpu import GpuDevice
from tests.kernels.emulation.callers import CallersArray
from tests.kernels.emulation.runtime import EmulatedRuntime

ROWS = 300
TABLES = {"a": 12, "b": 12, "c": 5}


def opened(path, device):
    how = {} if device == "cpu" else {"device": GpuDevice(EmulatedRuntime(), 1)}
    store = embstore.open(path, cache_bytes=1 << 20, **how)
    for name, dim in TABLES.items():
        optimizer = Sgd(0.5) if name == "b" else RowWiseAdagrad(0.1)
        store.create_table(
            name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=Uniform(-1, 1), seed=3
        )
    return store


def shares_of(count):
    """Ranks without a table, without keys, with repeated ones, and with sums of -0.0."""
    rng = np.random.default_rng(11)
    ranks = []
    for rank in range(count):
        share = {}
        for name, dim in TABLES.items():
            if (rank + len(share)) % 3 == 2:
                continue
            keys = rng.integers(0, ROWS, 0 if rank == 1 else 90) // (1 + rank % 4)
            own = rng.standard_normal((len(keys), dim)).astype(np.float32)
            own[::7] = -0.0
            share[name] = keys, own
        ranks.append(share)
    return ranks


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("count", [1, 3, 64, 65])
def test_ranks_are_added_to_the_same_bits(tmp_path, count, scale):
    digests = []
    for device in ("cpu", "gpu"):
        with opened(tmp_path / device, device) as store:
            for _ in range(2):
                store.update_ranks(shares_of(count), gradient_scale=scale)
            digests.append({name: store.table(name).digest() for name in TABLES})
    assert digests[0] == digests[1]


def test_arrays_of_the_device_stay_there(tmp_path):
    """Nothing of keys and gradients comes to the host."""
    with opened(tmp_path / "gpu", "gpu") as store:
        runtime = store.executor.device.runtime
        runtime.turn = store.executor.tables.frame.turn
        keys = np.arange(ROWS)
        store.table("a").lookup(keys)
        own = np.ones((ROWS, 12), np.float32)
        ranks = [(CallersArray.of(runtime, keys), CallersArray.of(runtime, own))] * 3
        store.table("a").update_ranks(ranks)  # what is sent once is there
        before = runtime.uploaded_bytes, runtime.downloaded_bytes
        store.table("a").update_ranks(ranks)
        up, down = runtime.uploaded_bytes - before[0], runtime.downloaded_bytes - before[1]
        assert up < 3 * own.nbytes / 4  # zeros that counters of kernels begin with
        assert down < 8 * ROWS
        found = store.table("a").lookup(keys)
    with opened(tmp_path / "cpu", "cpu") as store:
        for _ in range(2):
            store.table("a").update_ranks([(keys, own)] * 3)
        assert np.array_equal(store.table("a").lookup(keys), found)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_first_refused_sum_is_named_over_the_ranks_in_order(tmp_path, device):
    with opened(tmp_path, device) as store:
        own = np.ones((3, 12), np.float32)
        bad = own.copy()
        bad[1] = 3e38
        ranks = [(np.array([5, 6, 7]), bad), (np.array([9, 6, 8]), bad)]
        with pytest.raises(InvalidArgumentError, match="for key 6"):
            store.table("a").update_ranks(ranks)
        assert store.table("a").t == 0

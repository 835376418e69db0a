"""What a call costs on a GPU: launches and waits, whatever the number of tables."""

import gc

import numpy as np
import pytest

import embstore
from embstore import Adam, Uniform
from embstore.device.gpu import GpuDevice
from embstore.profiles.hotset import HotSet
from tests.kernels.emulation.runtime import EmulatedRuntime

SEED = 67
KEYS = 130


class Counting(EmulatedRuntime):
    """Counts how often the host waits, and what it sends."""

    def __init__(self):
        super().__init__()
        self.waits = self.copies = 0

    def wait(self, mark):
        self.waits += self._streams[mark.stream].done < mark.position  # for work not yet done
        super().wait(mark)

    def upload(self, source, target, *, stream=0):
        self.copies += 1
        super().upload(source, target, stream=stream)


def costs(path, table_count):
    """Return launches, uploads and waits of a lookup and of an update; all rows are resident."""
    runtime, rng = Counting(), np.random.default_rng(SEED)
    with embstore.open(path, device=GpuDevice(runtime), cache_bytes=1 << 22) as store:
        kind = {"dim": 8, "rows": 500, "optimizer": Adam(0.1), "initializer": Uniform(-1, 1)}
        names = [f"t{i}" for i in range(table_count)]
        for name in names:
            store.create_table(name, **kind)
        keys = dict(zip(names, rng.integers(0, 500, (table_count, KEYS)), strict=True))
        grads = {n: (k, np.ones((KEYS, 8), np.float32)) for n, k in keys.items()}
        store.lookup(keys)
        store.update(grads)
        found = []
        for call in (lambda: store.lookup(keys), lambda: store.update(grads)):
            before = runtime.launches, runtime.copies, runtime.waits
            call()
            after = runtime.launches, runtime.copies, runtime.waits
            found.append(tuple(b - a for a, b in zip(before, after, strict=True)))
        return found


def test_26_tables_cost_the_launches_of_one(tmp_path):
    (one_lookup, one_update), (lookup, update) = (costs(tmp_path / str(n), n) for n in (1, 26))
    assert lookup[0] == one_lookup[0]
    more = 5  # a sort by two digits, for more than 256 keys, each in two more kernels for its tiles
    assert update[0] == one_update[0] + more
    assert (lookup[1], update[1]) == (one_lookup[1], one_update[1])


@pytest.mark.parametrize("table_count", [1, 26])
def test_the_host_waits_once(tmp_path, table_count):
    lookup, update = costs(tmp_path, table_count)
    assert (lookup[2], update[2]) == (1, 1)


def test_a_closed_store_leaves_nothing_on_the_device(tmp_path):
    """Without the help of the collector of circular references."""
    runtime = EmulatedRuntime()
    gc.collect()
    gc.disable()
    try:
        store = embstore.open(tmp_path, device=GpuDevice(runtime), cache_bytes=1 << 20)
        table = store.create_table(
            "a", dim=8, rows=500, optimizer=Adam(0.1), initializer=Uniform(-1, 1)
        )
        for _ in range(3):
            table.update(np.arange(500), np.ones((500, 8), np.float32))
        store.pin_hot_set(HotSet({"a": np.arange(50)}))
        assert runtime.live_bytes > 100_000
        store.close()
        assert runtime.live_bytes < 100_000, "the index may stay as long as the object"
        del store, table
        assert runtime.live_bytes == 0
    finally:
        gc.enable()

"""What a call costs on a GPU: launches and waits, whatever the number of tables."""

import numpy as np
import pytest

import embstore
from embstore import Adam, Uniform
from embstore.device.gpu import GpuDevice
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
    assert update[0] == one_update[0] + 2, "a second pass of the sort: more keys than 256"
    assert (lookup[1], update[1]) == (one_lookup[1], one_update[1])


@pytest.mark.parametrize("table_count", [1, 26])
def test_the_host_waits_once_for_what_is_found_and_once_for_an_output(tmp_path, table_count):
    lookup, update = costs(tmp_path, table_count)
    assert lookup[2] == 2
    assert update[2] == 1

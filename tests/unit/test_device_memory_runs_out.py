"""The device has no memory at some moment, at any: what a call was refused for changed nothing.

A refused call is made again. Either it was refused whole (CapacityError), and the table is in the
end what it is without the refusal; or the store has failed, and opens at its last commit.
"""

from collections import Counter
from functools import partial

import numpy as np
import pytest

import embstore
from embstore import Adagrad, CapacityError, StorageError, StoreClosedError, Uniform
from embstore.device.gpu import GpuDevice
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.unit.small_stores import show

SEED = 83
ROWS, DIM, STEPS, CACHE_BYTES = 400, 6, 4, 24_000


class Refusing(EmulatedRuntime):
    """Refuses the allocations from one on, so many of them."""

    def __init__(self, first=-1, count=0):
        super().__init__()
        self.refused = range(first, first + count)
        self.asked = 0

    def allocate(self, count, dtype, *, width=1):
        self.asked += 1
        if self.asked in self.refused:
            raise CapacityError("no memory, says the test")
        return super().allocate(count, dtype, width=width)


def train(path, runtime):
    """Return the digest after some steps, each tried again once; and how often one was refused."""
    rng, refusals = np.random.default_rng(SEED), 0
    options = {"cache_bytes": CACHE_BYTES, "host_cache_bytes": 0}
    with embstore.open(path, device=GpuDevice(runtime), **options) as store:
        kind = {"dim": DIM, "rows": ROWS, "optimizer": Adagrad(0.1), "initializer": Uniform(-1, 1)}
        while not store.tables():
            refusals += tried(partial(store.create_table, "a", **kind))
        table = store.table("a")
        for step in range(STEPS):
            keys = rng.integers(0, ROWS, 60 if step % 2 else 350)
            grads = rng.standard_normal((len(keys), DIM)).astype(np.float32)
            for call in (partial(table.lookup, keys), partial(table.update, keys, grads)):
                while tried(call):
                    refusals += 1
                    store.check_integrity()
            if step == STEPS // 2:
                while tried(partial(store.checkpoint, "c")):
                    refusals += 1
        store.check_integrity()
        return table.digest(), refusals


def tried(call):
    """Make a call; return 1 if it was refused."""
    try:
        call()
    except CapacityError:
        return 1
    return 0


@pytest.mark.parametrize("count", [1, 2, 6])
def test_what_is_refused_changes_nothing(tmp_path, count):
    asked = Refusing()
    expected, _ = train(tmp_path / "calm", asked)
    outcomes = []
    for first in range(1, asked.asked + 1):
        path = tmp_path / f"from-{first}"
        try:
            found, refusals = train(path, Refusing(first, count))
        except CapacityError:
            outcomes.append("not opened")
            continue
        except (StorageError, StoreClosedError):
            outcomes.append("failed")  # opens at its last commit, as after a crash
            embstore.open(path, device="cpu").close()
            continue
        assert found == expected, f"allocations from {first} on"
        outcomes.append("refused" if refusals else "done")
    show(Counter(outcomes))
    if count > 2:
        assert "refused" in outcomes
    else:  # one is found by giving kept scratch back, the next is what the spare is for
        assert "done" in outcomes and "failed" not in outcomes

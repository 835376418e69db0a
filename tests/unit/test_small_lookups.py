"""A lookup without a batch does to the cache what one with a batch does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.cache.policies import POLICIES
from embstore.device.base import Device
from embstore.device.cpu import CpuDevice
from embstore.device.gpu import GpuDevice
from tests.kernels.emulation.runtime import EmulatedRuntime

SEED, STEPS, ROWS = 20_261_125, 120, 900


DEVICES = {"cpu": lambda: CpuDevice(1), "emulated": lambda: GpuDevice(EmulatedRuntime(), 1)}


def lived(path: Path, policy: str, device: Device) -> tuple[Any, ...]:
    """Live the life of a store, whose cache is too small; return how many lookups were done without
    a batch, and all that can be seen of it."""
    rng, look_up, without = np.random.default_rng(SEED), device.rows.look_up, 0

    def noted(*arguments: Any) -> int:
        nonlocal without
        found = look_up(*arguments)
        without += found >= 0
        return found

    device.rows.look_up = noted  # type: ignore[method-assign]
    budgets = {"cache_bytes": 160 << 10, "host_cache_bytes": 0}
    with embstore.open(path, device=device, policy=policy, **budgets) as store:  # type: ignore[arg-type]
        tables = [
            store.create_table(
                name, dim=dim, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
            )
            for name, dim in (("a", 12), ("b", 12), ("c", 5))
        ]
        seen = []
        for _ in range(STEPS):
            keys = [np.minimum(rng.zipf(1.3, rng.integers(0, 90)) - 1, ROWS - 1) for _ in tables]
            named = {t.name: k for t, k in zip(tables, keys, strict=True) if rng.random() < 0.6}
            seen += store.lookup(named).values() if named else []
            counts = rng.integers(1, 9, len(keys[0]))
            seen.append(tables[0].lookup(keys[0], rng.random() < 0.7, counts=counts))
            seen.append(tables[1].lookup(keys[0], rng.random() < 0.7))
            if rng.random() < 0.3:
                tables[2].update(keys[2], np.ones((len(keys[2]), 5), np.float32))
        pools = store.executor.tables.pools.values()  # type: ignore[attr-defined]
        scores = [pool.slots.contents().scores.tolist() for pool in pools]
        stats = store.stats()["cache"]["pools"]
        store.check_integrity()
        digests = [table.digest() for table in tables]
    return without, [one.tobytes() for one in seen], scores, stats, digests


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_scores_and_counters_are_those_of_lookups_with_a_batch(policy, device, tmp_path):
    without, *small = lived(tmp_path / "small", policy, DEVICES[device]())
    other = DEVICES[device]()
    other.rows.look_up_keys_max = 0
    none, *batched = lived(tmp_path / "batched", policy, other)
    assert without > STEPS // 5
    assert none == 0
    assert small == batched

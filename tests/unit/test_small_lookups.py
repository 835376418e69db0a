"""A small lookup makes no batch of its keys, and does to the cache what one with a batch does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.cache.policies import POLICIES
from embstore.device.cpu import CpuDevice
from embstore.tables import reads

SEED, STEPS, ROWS = 20_261_125, 120, 900


class Noted(CpuDevice):
    """The CPU, counting the lookups that it did without a batch."""

    def __init__(self) -> None:
        super().__init__(1)
        self.looked_up = 0
        look_up = self.rows.look_up

        def noted(*arguments: Any) -> int:
            found = look_up(*arguments)
            self.looked_up += found >= 0
            return found

        self.rows.look_up = noted  # type: ignore[method-assign]


def lived(path: Path, policy: str) -> tuple[Any, ...]:
    """Live the life of a store, whose cache is too small; return all that can be seen of it."""
    rng, device = np.random.default_rng(SEED), Noted()
    with embstore.open(path, device=device, cache_bytes=160 << 10, policy=policy) as store:  # type: ignore[arg-type]
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
        scores = [pool.slots.memory.scores[: pool.slots.count].tolist() for pool in pools]
        stats = store.stats()["cache"]["pools"]
        store.check_integrity()
        digests = [table.digest() for table in tables]
    return device.looked_up, [one.tobytes() for one in seen], scores, stats, digests


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_scores_and_counters_are_those_of_lookups_with_a_batch(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, *small = lived(tmp_path / "small", policy)
    monkeypatch.setattr(reads, "LOOK_UP_KEYS", 0)
    none, *batched = lived(tmp_path / "batched", policy)
    assert without > STEPS // 4
    assert none == 0
    assert small == batched

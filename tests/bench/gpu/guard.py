"""A training trace, executed on the CPU and on the device that is measured: both must give one
digest.

A fast result that is wrong is not a figure. The proof of correctness is the conformance suite
(``pytest -m gpu``). This module is a check in addition, with the sizes of a benchmark: hot keys,
and a cache too small for all rows. It also runs once with the yardstick's sizes: a million keys,
wide rows, and slots for half of the rows.
"""

import pathlib
from typing import Any

import numpy as np

import embstore
from embstore.config import Optimizer, RowWiseAdagrad
from embstore.device.cpu import CpuDevice
from tests.bench.gpu.cases import OPTIMIZERS
from tests.bench.gpu.law import Footprint, Zipf
from tests.bench.gpu.machine import Machine
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.step import DIM
from tests.bench.gpu.stores import budget_for

NARROW_DIM = 20
CACHE_BYTES = 1 << 20
CACHED_SHARE = 0.5


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return by optimizer the digests of both, and whether they are one."""
    rows = 4 * scale.guard_keys
    rng = np.random.default_rng(scale.seed)
    batches = [
        np.minimum(rng.zipf(1.2, scale.guard_keys) - 1, rows - 1) for _ in range(scale.guard_rounds)
    ]
    return {
        optimizer.kind: _compared(
            machine, path / optimizer.kind, batches, optimizer, rows, NARROW_DIM, CACHE_BYTES
        )
        for optimizer in OPTIMIZERS
    }


def at_scale(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return the same of row-wise Adagrad over the yardstick's batches."""
    run = Footprint(Zipf(scale).batches(scale.guard_rounds, scale.keys), scale.seed)
    dim, optimizer = min(DIM, max(scale.dims)), RowWiseAdagrad(0.01)
    device = machine.device()
    cache_bytes = budget_for(int(CACHED_SHARE * run.rows), dim, device)
    device.close()
    return {
        optimizer.kind: _compared(machine, path, run.batches, optimizer, run.rows, dim, cache_bytes)
        | {"rows": run.rows, "keys": scale.keys, "dim": dim, "cache_bytes": cache_bytes}
    }


def _compared(
    machine: Machine,
    path: pathlib.Path,
    batches: list[Any],
    optimizer: Optimizer,
    rows: int,
    dim: int,
    cache_bytes: int,
) -> dict[str, Any]:
    """Train the batches on both, and return the digests."""
    digests, hits = {}, {}
    for name, device in (("cpu", CpuDevice()), ("device", machine.device())):
        rng = np.random.default_rng(rows)
        with embstore.open(path / name, device=device, cache_bytes=cache_bytes) as store:
            table = store.create_table(
                "t", dim=dim, rows=rows, optimizer=optimizer, initializer=embstore.Normal(0.0, 0.1)
            )
            for keys in batches:
                table.lookup(keys)
                table.update(keys, rng.standard_normal((len(keys), dim), np.float32))
            digests[name] = str(table.digest())
            hits[name] = store.stats()["cache"]["pools"][0]["unique_hit_rate"]
    return digests | {"same": digests["cpu"] == digests["device"], "hit_rate": hits["device"]}

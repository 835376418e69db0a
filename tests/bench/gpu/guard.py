"""A training trace through the CPU and through the device that is measured: one digest.

What is fast and wrong is no figure. The conformance suite is the proof (``pytest -m gpu``); this is
a guard beside the figures, with the sizes of a benchmark: hot keys, and a cache too small for all.
"""

import pathlib
from typing import Any

import numpy as np

import embstore
from tests.bench.gpu.cases import OPTIMIZERS
from tests.bench.gpu.machine import Machine
from tests.bench.gpu.scale import Scale

DIM = 20
CACHE_BYTES = 1 << 20


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return by optimizer the digests of both, and whether they are one."""
    found = {}
    for optimizer in OPTIMIZERS:
        cpu = _digest(path / f"cpu-{optimizer.kind}", "cpu", optimizer, scale)
        device = _digest(path / f"gpu-{optimizer.kind}", machine.device(), optimizer, scale)
        found[optimizer.kind] = {"cpu": cpu, "device": device, "same": cpu == device}
    return found


def _digest(path: pathlib.Path, device: Any, optimizer: Any, scale: Scale) -> str:
    rng = np.random.default_rng(scale.seed)
    rows = 4 * scale.guard_keys
    with embstore.open(path, device=device, cache_bytes=CACHE_BYTES) as store:
        table = store.create_table(
            "t",
            dim=DIM,
            rows=rows,
            optimizer=optimizer,
            initializer=embstore.Normal(0.0, 0.1),
        )
        for _ in range(scale.guard_rounds):
            keys = np.minimum(rng.zipf(1.2, scale.guard_keys) - 1, rows - 1)
            gradients = rng.standard_normal((len(keys), DIM), np.float32)
            table.lookup(keys)
            table.update(keys, gradients)
        return str(table.digest())

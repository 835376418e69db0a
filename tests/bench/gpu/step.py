"""The yardstick's step: lookup and update of a resident working set, through the engine.

The rows are the footprint of the batches (`law.py`), numbered so that their keys are close
together, as in a table; torch gets the same keys. Keys, gradients and outputs are on the device.
The wall time is that of many steps with one wait at the end. In addition the module measures the
time of the device's events over the same steps, of lookups alone, of updates alone, and the host's
time for the stages of the engine.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.gpu.law import Footprint, Zipf
from tests.bench.gpu.machine import Machine, timer_of, wait
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import DeviceStore, since

DIM = 128


class Step:
    """Batches of the law on a store whose cache holds all their rows."""

    def __init__(self, machine: Machine, scale: Scale, path: pathlib.Path) -> None:
        self._scale = scale
        self._device = device = machine.device()
        device.warm_up()
        self.dim = min(DIM, max(scale.dims))
        run = Footprint(Zipf(scale).batches(scale.step_batches, scale.keys), scale.seed)
        self.store = DeviceStore(
            path, device, cache_bytes=scale.cache_bytes, rows=run.rows, dim=self.dim
        )
        self._d_keys = [device.memory.upload(keys) for keys in run.batches]
        rng = np.random.default_rng(scale.seed)
        shape = (scale.keys, self.dim)
        gradients = rng.standard_normal(shape, np.float32) * np.float32(0.01)
        self._d_gradients = [device.memory.upload(gradients) for _ in range(2)]
        self._d_outs = [
            device.memory.allocate(scale.keys, np.float32, width=self.dim) for _ in range(2)
        ]

    def lookup(self, number: int) -> None:
        keys = self._d_keys[number % len(self._d_keys)]
        self.store.lookup(keys, self._d_outs[number % 2])

    def update(self, number: int) -> None:
        keys = self._d_keys[number % len(self._d_keys)]
        self.store.update(keys, self._d_gradients[number % 2])

    def both(self, number: int) -> None:
        self.lookup(number)
        self.update(number)

    def measure(self) -> dict[str, Any]:
        """Return all figures; the first steps bring the rows in."""
        for number in range(2 * len(self._d_keys)):
            self.both(number)
        counters, steps = self.store.pool.counters, self._scale.steps
        unique, hits = counters.unique_keys, counters.unique_hits
        stages = self.store.stages_ms()
        found: dict[str, Any] = {"step": self._timed(self.both)}
        found["stages_ms"] = since(stages, self.store.stages_ms(), steps)
        found["unique_keys"] = (counters.unique_keys - unique) / steps
        found["missing_keys"] = (
            counters.unique_keys - unique - counters.unique_hits + hits
        ) / steps
        found |= {"lookup": self._timed(self.lookup), "update": self._timed(self.update)}
        return found | {"dim": self.dim, "keys": self._scale.keys, "memory": self._memory()}

    def _timed(self, work: Callable[[int], None]) -> dict[str, float]:
        clock, steps = timer_of(self._device).clock, self._scale.steps
        wait(self._device)
        begin, wall = clock.point(), time.perf_counter()
        for number in range(steps):
            work(number)
        wait(self._device)
        wall_ms = 1e3 * (time.perf_counter() - wall)
        device_ms = clock.elapsed_ms(begin, clock.point())
        return {"wall_ms": wall_ms / steps, "device_ms": device_ms / steps}

    def _memory(self) -> dict[str, Any]:
        """Return bytes as they are allocated, first as the steps left them, then when the pool has
        all slots of its budget: an index that grows is made for more slots than there are."""
        pool = self.store.pool
        scratch_bytes, resident = self._device.facts()["scratch_bytes"], pool.slots.resident_count
        growing = self._beside_a_row()
        with self.store.engine.reading():
            pool.residency.part_keys(1 << 62)
        return {
            "resident_rows": resident,
            "slots": pool.slots.count,
            "row_bytes": 4 * pool.layout.stride,
            "growing_bytes_beside_a_row": growing,
            "bytes_beside_a_row": self._beside_a_row(),
            "scratch_bytes": scratch_bytes,
        }

    def _beside_a_row(self) -> float:
        """Return the bytes of a slot beside its row: metadata, index, and the host's free list."""
        pool = self.store.pool
        slabs = sum(part.nbytes for slab in pool.slots.memory.slabs for part in slab)
        rows = 4 * pool.layout.stride * pool.slots.count
        index = sum(array.nbytes for array in vars(pool.slots.index.synchronize()).values())
        return float((slabs - rows + index + pool.slots._free.nbytes) / pool.slots.count)

    def close(self) -> None:
        self.store.close()


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    with contextlib.closing(Step(machine, scale, path)) as step:
        return step.measure()

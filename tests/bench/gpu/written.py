"""A store whose rows were all written before, made once per run, and copies of it.

Its rows are the footprint of `footprint_batches` batches, numbered in a random order (`law.py`).
All rows are in the base, so a copy has nothing to merge until it is trained. They are also in the
page cache, because they have just been written. Steps draw the accesses of those batches again.
"""

import contextlib
import functools
import pathlib
from typing import Any

import numpy as np

from embstore.device.gpu import GpuDevice
from tests.bench.gpu.law import Footprint, Keys, Zipf
from tests.bench.gpu.machine import Machine
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.step import DIM
from tests.bench.gpu.stores import DeviceStore, budget_for
from tests.bench.stores import copy_store


class Written:
    """The written store, and the batches and gradients of its training."""

    def __init__(self, machine: Machine, scale: Scale, folder: pathlib.Path) -> None:
        self._scale = scale
        self._first = folder / "written"
        self._batches: dict[int, list[Keys]] = {}
        batches = Zipf(scale).batches(scale.footprint_batches, scale.keys)
        self._footprint = Footprint(batches, scale.seed)
        self.rows, self.dim = self._footprint.rows, min(DIM, max(scale.dims))
        rng = np.random.default_rng(scale.seed)
        self.gradients = rng.standard_normal((scale.keys, self.dim), np.float32) * np.float32(0.01)
        self._write(machine.device())

    def _write(self, device: GpuDevice) -> None:
        device.warm_up()
        step = min(self._scale.written_keys, self._scale.keys)
        cache_bytes = budget_for(self.rows, self.dim, device)
        with contextlib.closing(
            DeviceStore(self._first, device, cache_bytes=cache_bytes, rows=self.rows, dim=self.dim)
        ) as store:
            d_gradients = device.memory.upload(self.gradients[:step])
            for low in range(0, self.rows, step):
                keys = np.arange(low, min(low + step, self.rows))
                store.update(device.memory.upload(keys), d_gradients[: len(keys)])
            store.commit()
            store.finish_merges()

    def open(self, path: pathlib.Path, device: GpuDevice, **options: Any) -> DeviceStore:
        """Return a fresh copy of the store, open; `options` go to embstore.open."""
        copy_store(self._first, path)
        return DeviceStore(path, device, rows=self.rows, dim=self.dim, **options)

    def batches(self, keys: int) -> list[Keys]:
        """Return the drawn batches of so many keys; steps take them in turn."""
        if keys not in self._batches:
            draws = range(self._scale.drawn_batches)
            self._batches[keys] = [self._footprint.batch(keys) for _ in draws]
        return self._batches[keys]


written = functools.lru_cache(maxsize=1)(Written)
"""Returns the store of a run: its parts share it."""

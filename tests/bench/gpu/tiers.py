"""A cache that is smaller than the footprint, over rows that were all written before.

The rows are the unique keys of a run of `step_batches` batches, numbered in a random order; the
steps draw that run's accesses again (`law.py`); the cache has slots for `cached_share` of them. The
files of the rows have just been written, so that they are in the page cache.

The way of missing rows alone is measured by making rows resident none of which is, with slots free
for all: from storage, and in a second store from the host tier, which had them from the GPU. Beside
it pinned memory is copied, in the same process.
"""

import contextlib
import pathlib
import time
from typing import Any

import numpy as np

from embstore.cache.sizes import Sizes
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import DOWN, UP
from embstore.layout import Layout
from tests.bench.gpu.law import Footprint, Zipf
from tests.bench.gpu.machine import Machine, median, timer_of, wait
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.step import DIM
from tests.bench.gpu.stores import DeviceStore, since

COPIES = 4


class Tiers:
    """A store whose rows are all on the host, some of them in the cache too."""

    def __init__(
        self, machine: Machine, scale: Scale, path: pathlib.Path, *, has_tier: bool = False
    ) -> None:
        self._scale = scale
        self._device = device = machine.device()
        device.warm_up()
        dim = min(DIM, max(scale.dims))
        run = Zipf(scale).batches(scale.step_batches, scale.keys)
        self._footprint = Footprint(run, scale.seed)
        wanted = int(scale.cached_share * self._footprint.rows)
        cache_bytes = budget_for(wanted, dim, device)
        self.store = DeviceStore(
            path,
            device,
            cache_bytes=cache_bytes,
            host_cache_bytes=2 * cache_bytes if has_tier else 0,
            rows=self._footprint.rows,
            dim=dim,
        )
        rng = np.random.default_rng(scale.seed)
        gradients = rng.standard_normal((scale.keys, dim), np.float32) * np.float32(0.01)
        self._d_gradients = device.memory.upload(gradients)
        self._d_out = device.memory.allocate(scale.keys, np.float32, width=dim)
        self._write_all()

    def _write_all(self) -> None:
        """Update every row once, and have storage do what is due."""
        step = min(self._scale.written_keys, self._scale.keys)
        for low in range(0, self._footprint.rows, step):
            keys = np.arange(low, min(low + step, self._footprint.rows))
            d_keys = self._device.memory.upload(keys)
            self.store.update(d_keys, self._d_gradients[: len(keys)])
        self._settle()

    def _settle(self) -> None:
        self.store.store.flush()
        self.store.finish_merges()

    def from_storage(self) -> dict[str, Any]:
        """Return the way of rows from the page cache to slots."""
        pool, device = self.store.pool, self._device
        count = min(self._scale.held_rows, pool.slots.count)
        before = vars(pool.counters).copy()
        spent = []
        for _ in range(1 + self._scale.held_repeats):
            with self.store.engine.reading():
                pool.writer.flush()
                pool.residency.purge(0)
                # Of table 0, whose row keys are its keys.
                d_keys = device.memory.upload(self._footprint.some(count))
                wait(device)
                begin = time.perf_counter()
                pool.residency.make_resident(d_keys)
                wait(device)
                spent.append(time.perf_counter() - begin)
        seconds, moved = median(spent[1:]), count * pool.layout.row_bytes
        pinned = pinned_bytes_per_s(device, self._scale)
        origins = {
            name: (getattr(pool.counters, f"misses_{name}") - before[f"misses_{name}"]) / len(spent)
            for name in ("log", "base", "initializer")
        }
        return {
            "rows": count,
            "origins": origins,
            "ms": 1e3 * seconds,
            "bytes": moved,
            "bytes_per_s": moved / seconds,
            "pinned_bytes_per_s": pinned,
            "share": moved / seconds / pinned["up"],
        }

    def from_tier(self) -> dict[str, Any]:
        """Return the way of rows from the GPU's slots to the host tier, and back."""
        pool, device = self.store.pool, self._device
        count = min(self._scale.held_rows, pool.slots.count)
        spent: dict[str, list[float]] = {"down": [], "up": []}
        came = pool.counters.misses_host
        for _ in range(1 + self._scale.held_repeats):
            with self.store.engine.reading():
                pool.writer.flush()
                keys = self._footprint.some(count)
                d_keys = device.memory.upload(keys)
                pool.residency.make_resident(d_keys)
                wait(device)
                times = [time.perf_counter()]
                evicted = pool.evictor.evict(pool.slots.count)
                wait(device)
                times.append(time.perf_counter())
                pool.residency.make_resident(d_keys)
                wait(device)
                times.append(time.perf_counter())
                for way, rows, seconds in zip(spent, (evicted, count), np.diff(times), strict=True):
                    spent[way].append(rows * pool.layout.row_bytes / seconds)
        return {
            "rows": count,
            "came": (pool.counters.misses_host - came) / len(spent["up"]),
            "bytes_per_s": {way: median(rates[1:]) for way, rates in spent.items()},
            "pinned_bytes_per_s": pinned_bytes_per_s(device, self._scale),
        }

    def steps(self) -> dict[str, Any]:
        scale, pool = self._scale, self.store.pool
        for _ in range(scale.cached_settle_steps):
            self._step()
        self.store.finish_merges()
        counters, stages = vars(pool.counters).copy(), self.store.stages_ms()
        spent = [self._step() for _ in range(scale.cached_steps)]
        grown = {
            name: (value - counters[name]) / scale.cached_steps
            for name, value in vars(pool.counters).items()
            if value is not None  # a rate, which is made of the others
        }
        return {
            "footprint_rows": self._footprint.rows,
            "slots": pool.slots.count,
            "share": pool.slots.count / self._footprint.rows,
            "ms": median(spent),
            "quartiles_ms": np.percentile(spent, [25, 75]).tolist(),
            "highest_ms": max(spent),
            "unique_keys": grown["unique_keys"],
            "missing_keys": grown["unique_keys"] - grown["unique_hits"],
            "counters": grown,
            "stages_ms": since(stages, self.store.stages_ms(), scale.cached_steps),
        }

    def _step(self) -> float:
        """Do a step with keys that are on the device; return its milliseconds."""
        d_keys = self._device.memory.upload(self._footprint.batch(self._scale.keys))
        wait(self._device)
        begin = time.perf_counter()
        self.store.lookup(d_keys, self._d_out)
        self.store.update(d_keys, self._d_gradients)
        wait(self._device)
        return 1e3 * (time.perf_counter() - begin)

    def close(self) -> None:
        self.store.close()


def budget_for(slots: int, dim: int, device: GpuDevice) -> int:
    """Return a budget in which a pool of row-wise Adagrad comes to about so many slots."""
    layout = Layout(dim, 1, "rowwise_adagrad")
    slot_bytes = Sizes.of(layout, 1, device).slot_bytes
    sizes = Sizes.of(layout, slots * slot_bytes, device)
    count = -(-slots // sizes.slab_slots) * sizes.slab_slots
    # The index is made for the slots that there may be, of which the last slab is not granted.
    index_bytes = device.memory.index_bytes(count + sizes.slab_slots)
    return max(count * slot_bytes + index_bytes + sizes.staging_bytes, sizes.least_bytes)


def pinned_bytes_per_s(device: GpuDevice, scale: Scale) -> dict[str, float]:
    """Return what copies from and to pinned memory move, each way by itself."""
    runtime = timer_of(device)
    host = runtime.allocate_host(scale.pinned_bytes)
    host[:] = 1
    d_memory = runtime.allocate(scale.pinned_bytes, np.uint8)
    ways = {
        "up": lambda: runtime.upload(host, d_memory, stream=UP),
        "down": lambda: runtime.download(d_memory, host, stream=DOWN),
    }
    found = {}
    for way, copy in ways.items():
        copy()
        wait(device)
        begin = time.perf_counter()
        for _ in range(COPIES):
            copy()
        wait(device)
        found[way] = COPIES * scale.pinned_bytes / (time.perf_counter() - begin)
    return found


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return the figures of missing rows, and of steps that have some, with a host tier and
    without."""
    with contextlib.closing(Tiers(machine, scale, path / "without")) as tiers:
        figures = {"storage": tiers.from_storage(), "cached": tiers.steps()}
    with contextlib.closing(Tiers(machine, scale, path / "with", has_tier=True)) as tiers:
        return figures | {"host_tier": tiers.from_tier(), "cached_with_tier": tiers.steps()}

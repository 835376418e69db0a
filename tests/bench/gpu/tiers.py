"""A cache that is smaller than its rows, with or without level two below it.

Each **setting** is a separate part: ``--only tiers-0.7-rest``; ``--only tiers`` means all settings.
The first part of the name is the share of the rows for which the cache has slots. The second part
says for how much of the rest level two, pinned memory of the host, has room: the rest, half of it,
or none. Each setting begins with a fresh copy of one written store (`written.py`), so that other
settings do not change its rows. The measurements of a setting share that copy, in an order that
`order` repeats:

* **moved**: lookups whose rows are all missing, after each row was looked up once. If level two
  contains the rest, each missing row moves up from level two, and another row moves down in
  exchange: this measures the exchange alone. Without level two, rows come from files in the page
  cache.
* **plain**: a window of lookups and updates (`window.py`), after the cache has reached a steady
  state
* **look-ahead**: a window of steps of a session, for each computation time (`ahead.py`)

A step has 1.05 million keys, which are drawn from the run's accesses. If the cache has slots for a
tenth of the rows, these are fewer rows than one such step has, so no step could be planned; there,
a step has an eighth of the keys.
"""

import contextlib
import pathlib
import shutil
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from embstore.config import Limits
from tests.bench.gpu.ahead import measure_ahead
from tests.bench.gpu.machine import Machine, median, pinned_bytes_per_s
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import budget_for, level_two_for, since
from tests.bench.gpu.window import take
from tests.bench.gpu.written import Written, written

LEVEL_TWO = {"rest": 1.75, "half": 0.5, "none": 0.0}
"""Slots of level two for each row that the cache has no slot for. More than one for the rest: rows
that trade places are in both levels for a moment."""
ABSENT = 0
"""The option `host_cache_bytes` of a store without level two."""
FEWER_KEYS = {0.7: 1, 0.1: 8}
"""By share, a step has one key in so many of the yardstick's."""


class Setting(NamedTuple):
    """Slots of the cache, as a share of all rows, and how much of the rest level two holds."""

    share: float
    level_two: str

    @property
    def part(self) -> str:
        return f"tiers-{self.share:g}-{self.level_two}"


SETTINGS = [Setting(share, level_two) for level_two in LEVEL_TWO for share in FEWER_KEYS]
PROMISED = SETTINGS[0]
"""The setting of the goals. Its window is longer, for a commit and a merge to end in it."""


class Tiers:
    """A store of a setting, and the calls of its training."""

    def __init__(
        self, machine: Machine, scale: Scale, setting: Setting, run: Written, path: pathlib.Path
    ) -> None:
        self.scale = scale
        self.device = device = machine.device()
        device.warm_up()
        slots = int(setting.share * run.rows)
        below = int(LEVEL_TWO[setting.level_two] * (run.rows - slots))
        self.store = run.open(
            path,
            device,
            cache_bytes=budget_for(slots, run.dim, device, below),
            host_cache_bytes=level_two_for(below, run.dim) or ABSENT,
            limits=Limits(fold_bytes=scale.fold_bytes),
        )
        self.rows, self.dim = run.rows, run.dim
        self.batches = run.batches(scale.keys // FEWER_KEYS[setting.share])
        self.gradients = run.gradients
        self._d_batches = [device.memory.upload(keys) for keys in self.batches]
        self._d_gradients = device.memory.upload(self.gradients[: len(self.batches[0])])
        self._d_out = device.memory.allocate(scale.keys, np.float32, width=run.dim)
        self._steps = 0
        self._slice_keys = min(scale.moved_keys, slots // 2, scale.keys)
        self._next_key = 0

    def fill(self) -> None:
        """Look every row up, so that both levels are full."""
        for _ in range(-(-self.rows // self._slice_keys)):
            self._look_at_next()

    def _look_at_next(self) -> float:
        """Look up the rows that were looked up longest ago; return the seconds of the call."""
        keys = np.arange(self._next_key, self._next_key + self._slice_keys) % self.rows
        self._next_key = int(keys[-1]) + 1
        d_keys, d_out = self.device.memory.upload(keys), self._d_out[: len(keys)]
        self.store.wait()
        begin = time.perf_counter()
        self.store.lookup(d_keys, d_out)
        self.store.wait()
        return time.perf_counter() - begin

    def moved(self) -> dict[str, Any]:
        """Return what calls take whose rows are all missing, and the bytes that they move."""
        repeats, row_bytes = self.scale.moved_repeats, self.store.pool.layout.row_bytes
        self._look_at_next()
        before = self.store.sums()
        seconds = median([self._look_at_next() for _ in range(repeats)])
        sums = {k: since(before[k], found, repeats) for k, found in self.store.sums().items()}
        counters = sums["counters"]
        missing = sum(count for name, count in counters.items() if name.startswith("misses_"))
        return {
            "rows": self._slice_keys,
            "ms": 1e3 * seconds,
            "bytes_per_s": {
                "up": missing * row_bytes / seconds,
                "down": counters["evictions_host"] * row_bytes / seconds,
            },
            "pinned_bytes_per_s": pinned_bytes_per_s(self.device, self.scale),
            **sums,
        }

    def settle(self) -> None:
        """Take steps until rows are where steps leave them."""
        until = time.perf_counter() + self.scale.settle_s
        for _ in range(self.scale.settle_steps):
            if time.perf_counter() < until:
                self.step()
        self.store.finish_merges()

    def step(self) -> None:
        """Look a batch up and update it; keys, rows and gradients are on the device."""
        d_keys = self._d_batches[self._steps % len(self._d_batches)]
        self._steps += 1
        self.store.lookup(d_keys, self._d_out[: len(d_keys)])
        self.store.update(d_keys, self._d_gradients)

    def held(self) -> dict[str, Any]:
        """Return how many rows each level holds."""
        stats = self.store.store.stats()["cache"]
        pool = stats["pools"][0]
        return {
            "rows": self.rows,
            "slots": pool["slots"],
            "share": pool["slots"] / self.rows,
            "level_two_rows": pool["host_rows"],
            "level_two_share": pool["host_rows"] / self.rows,
        }


@contextlib.contextmanager
def opened(machine: Machine, scale: Scale, setting: Setting, path: pathlib.Path) -> Iterator[Tiers]:
    """Yield the store of a setting, both levels full; it is gone afterwards."""
    tiers = Tiers(machine, scale, setting, written(machine, scale, path.parent), path)
    try:
        tiers.fill()
        yield tiers
    finally:
        tiers.store.abandon()
        shutil.rmtree(path)


def measure(setting: Setting, machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return the figures of a setting, in the order in which they were taken."""
    plain_s = scale.promised_s if setting is PROMISED else scale.window_s
    with opened(machine, scale, setting, path) as tiers:
        found: dict[str, Any] = {"keys": len(tiers.batches[0])}
        found["moved"] = tiers.moved()
        tiers.settle()
        found["held"] = tiers.held()
        found["plain"] = take(tiers.store, tiers.step, scale.tier_steps, plain_s)
        found["look-ahead"] = measure_ahead(tiers)
    ahead = [f"look-ahead, {name}" for name in found["look-ahead"]]
    return found | {"order": ["moved", "plain", *ahead]}


PARTS = {setting.part: partial(measure, setting) for setting in SETTINGS}

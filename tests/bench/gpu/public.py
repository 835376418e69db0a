"""The step as a user calls it: `Table.lookup(keys, out=...)` and `Table.update(keys, gradients)`.

Keys, gradients and outputs are arrays of the GPU that another library owns, in the store's process
and in another one. The rows are the footprint of the yardstick's batches, all resident; smaller
calls draw of the same accesses. Nothing runs beside the calls but what they cause: rows come from
the initializer, and merges are finished before. A time is the mean of calls that follow each other,
with one wait for the GPU at the end. Beside calls of a user are those of the engine (`step.py`).

Each way is measured at durability `checkpoint`, and with what a server does that is started without
options: it logs updates (and commits where the log is long), counts a share of the accesses, and
its digest was taken once, so that it notes the blocks that are written.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.bench.gpu.law import Footprint, Zipf
from tests.bench.gpu.machine import Machine, wait
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.shared import served
from tests.bench.gpu.stores import NAME, Arrays, DeviceStore, arrays_of
from tests.bench.stores import create_table

CHECKPOINT, DEFAULTS = "checkpoint", "a server's defaults"
LEVELS: dict[str, dict[str, Any]] = {
    CHECKPOINT: {"durability": "checkpoint", "count_rate": 0.0},
    DEFAULTS: {"durability": "interval", "count_rate": 0.01},
}
BATCHES = 4
"""Of a size, in turn."""
FEWER_STEPS = 4
"""Of the largest calls so many times fewer: a log has 184 MB of each."""


class Way(NamedTuple):
    """What calls go to: a table's handle or what is called alike, and the caller's arrays."""

    table: Any
    array: Arrays
    synchronize: Callable[[], None]


class _Engine:
    """The calls of a store's engine, named as a table's."""

    def __init__(self, store: DeviceStore) -> None:
        self._store = store
        self.update = store.update

    def lookup(self, d_keys: Any, *, out: Any) -> None:
        self._store.lookup(d_keys, out)


class Public:
    """The batches, and what every way does with them."""

    def __init__(self, machine: Machine, scale: Scale) -> None:
        self._machine, self.scale = machine, scale
        self.dim = min(128, max(scale.dims))
        self._run = Footprint(Zipf(scale).batches(scale.step_batches, scale.keys), scale.seed)
        self.sizes = [*scale.call_keys, scale.keys]

    @contextlib.contextmanager
    def prepared(self, path: pathlib.Path, level: str) -> Iterator[DeviceStore]:
        """Open a store in this process whose rows are all resident."""
        device = self._machine.device()
        device.warm_up()
        cache_bytes = self.scale.cache_bytes
        with contextlib.closing(
            DeviceStore(
                path, device, cache_bytes=cache_bytes, rows=self._run.rows, dim=self.dim,
                **LEVELS[level],
            )
        ) as store:  # fmt: skip
            self._prepare(store.table, level)
            store.finish_merges()
            yield store

    def in_process(self, path: pathlib.Path, level: str) -> dict[str, Any]:
        with self.prepared(path, level) as store:
            device = store.device
            synchronize = lambda: wait(device)  # noqa: E731
            ways = {"in process": Way(store.table, arrays_of(device, self.scale), synchronize)}
            if level == CHECKPOINT:
                ways["engine"] = Way(_Engine(store), device.memory.upload, synchronize)
            return {name: self._measured(way) for name, way in ways.items()}

    def keys(self, size: int) -> list[Any]:
        """Return the keys of a few calls of a size."""
        return [self._run.batch(size) for _ in range(BATCHES)]

    def gradients(self, size: int) -> Any:
        """Return a gradient for each key of a call, (size, dim)."""
        rng = np.random.default_rng(size)
        return rng.standard_normal((size, self.dim), np.float32) * np.float32(0.01)

    def steps(self, size: int) -> int:
        """Return how many calls of a size are measured."""
        return max(self.scale.steps // (FEWER_STEPS if size == self.scale.keys else 1), 1)

    def another_process(self, path: pathlib.Path, level: str) -> dict[str, Any]:
        cache_bytes = self.scale.cache_bytes
        with served(self._machine, self.scale, path, cache_bytes, **LEVELS[level]) as found:
            store, array, synchronize = found
            table = create_table(store, NAME, self._run.rows, self.dim)
            self._prepare(table, level)
            return {"another process": self._measured(Way(table, array, synchronize))}

    def _prepare(self, table: Any, level: str) -> None:
        """Have all rows resident, and the digest taken where a server's has been."""
        for rows in self._slices():
            table.lookup(rows)
        if level == DEFAULTS:
            table.digest()

    def _slices(self) -> Iterator[Any]:
        rows = np.arange(self._run.rows)
        yield from np.array_split(rows, -(-len(rows) // self.scale.keys))

    def _measured(self, way: Way) -> dict[str, dict[str, float]]:
        return {str(size): self._of_size(way, size) for size in self.sizes}

    def _of_size(self, way: Way, size: int) -> dict[str, float]:
        gradients, keys = self.gradients(size), [way.array(of) for of in self.keys(size)]
        d_gradients, out = way.array(gradients), way.array(np.zeros_like(gradients))

        def lookup(number: int) -> None:
            way.table.lookup(keys[number % BATCHES], out=out)

        def update(number: int) -> None:
            way.table.update(keys[number % BATCHES], d_gradients)

        def step(number: int) -> None:
            lookup(number)
            update(number)

        steps = self.steps(size)
        calls = {"step_ms": step, "lookup_ms": lookup, "update_ms": update}
        return {name: self._mean_ms(way, call, steps) for name, call in calls.items()}

    def _mean_ms(self, way: Way, call: Callable[[int], None], steps: int) -> float:
        for number in range(BATCHES):
            call(number)
        way.synchronize()
        begin = time.perf_counter()
        for number in range(steps):
            call(number)
        way.synchronize()
        return 1e3 * (time.perf_counter() - begin) / steps


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return milliseconds by level, way and number of keys."""
    path.mkdir()
    public = Public(machine, scale)
    found = {}
    for number, level in enumerate(LEVELS):
        found[level] = public.in_process(path / f"own-{number}", level)
        found[level] |= public.another_process(path / f"served-{number}", level)
    return found | {"dim": public.dim}

"""Steps as a user calls them: on a table, on a table through shared memory, and in a session.

**Public**: `Table.lookup(keys, out=...)` and `Table.update(keys, gradients)`, in the store's
process and in another process. Keys, gradients and outputs are arrays of the GPU that belong to
another library. The rows are the footprint of the yardstick's batches, all resident; smaller calls
draw from the same accesses. For comparison, the calls of the engine (`step.py`) are measured
together with the calls of a user.

**Shared**: the same calls to a server on the same GPU, with keys drawn uniformly, once through
memory of the GPU that client and server share, and once through shared memory of the host. The
digests must be equal.

**Sessions**: `lookup`, then `update`, of a trainer that computes nothing. Keys come from the host,
repeated as in a batch; the run makes them unique and announces them ahead. Rows and gradients are
NumPy arrays, or arrays of the GPU (`rows="device"`); the two ways differ in nothing else.

Nothing runs in parallel to the calls except what they cause: rows come from the initializer, and
merges have finished before. A time is the mean over consecutive calls, with one wait for the GPU at
the end. In an emulated run, the server is in this process.

Each way is measured twice, except those of **Shared**. Once the durability is `checkpoint`. The
other time, the store does what a server does that is started without options: it logs updates (and
commits if the log is long), it counts a share of the accesses, and, because its digest was taken
once, it records the blocks that are written.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import embstore
from embstore_client import connect
from tests.bench import serving
from tests.bench.gpu.law import Footprint, Keys, Zipf
from tests.bench.gpu.machine import Machine, wait
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import NAME, Arrays, DeviceStore, arrays_of
from tests.bench.stores import create_table
from tests.serving import Server as ServerHere

CHECKPOINT, DEFAULTS = "checkpoint", "a server's defaults"
LEVELS: dict[str, dict[str, Any]] = {
    CHECKPOINT: {"durability": "checkpoint", "count_rate": 0.0},
    DEFAULTS: {"durability": "interval", "count_rate": 0.01},
}
BATCHES = 4
"""Of a size, in turn."""
FEWER_STEPS = 4
"""Of the largest calls so many times fewer: a log has 184 MB of each."""
SHARED_KEYS_MAX = 200_000


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


def engine_of(store: DeviceStore) -> Way:
    """Return the way to a store's engine."""
    return Way(_Engine(store), store.device.memory.upload, lambda: wait(store.device))


class Evenly:
    """Keys of all rows, each as likely as any other; always the same."""

    def __init__(self, scale: Scale) -> None:
        self.count = min(scale.keys, SHARED_KEYS_MAX)
        self.rows = 2 * self.count
        self._keys = np.random.default_rng(scale.seed).integers(0, self.rows, self.count)

    def batch(self, count: int) -> Keys:
        return self._keys[:count]


class Public:
    """The batches, of the yardstick's run unless of another, and what every way does with them."""

    def __init__(self, machine: Machine, scale: Scale, run: Evenly | None = None) -> None:
        self._machine, self.scale = machine, scale
        self.dim = min(128, max(scale.dims))
        self._run: Any = run
        if run is None:
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
            array = arrays_of(store.device, self.scale)
            ways = {"in process": Way(store.table, array, lambda: wait(store.device))}
            if level == CHECKPOINT:
                ways["engine"] = engine_of(store)
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

    @contextlib.contextmanager
    def served(self, path: pathlib.Path, level: str) -> Iterator[Way]:
        """Serve a store in another process whose rows are all resident; yield the way to it."""
        cache_bytes = self.scale.cache_bytes
        with _served(self._machine, self.scale, path, cache_bytes, **LEVELS[level]) as found:
            store, array, synchronize = found
            table = create_table(store, NAME, self._run.rows, self.dim)
            self._prepare(table, level)
            yield Way(table, array, synchronize)

    def another_process(self, path: pathlib.Path, level: str) -> dict[str, Any]:
        with self.served(path, level) as way:
            return {"another process": self._measured(way)}

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
        return {str(size): self.of_size(way, size) for size in self.sizes}

    def of_size(self, way: Way, size: int) -> dict[str, float]:
        """Return milliseconds of a step, a lookup and an update of so many keys."""
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


def shared(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return the milliseconds of both calls, each way, and whether the digests are the same."""
    path.mkdir()
    run = Evenly(scale)
    public, digests = Public(machine, scale, run), set()
    found: dict[str, Any] = {"keys": run.count, "dim": public.dim}
    with public.prepared(path / "own", CHECKPOINT) as store:
        found["in process"] = public.of_size(engine_of(store), run.count)
    for name in ("the GPU", "the host"):
        with public.served(path / name.replace(" ", "-"), CHECKPOINT) as way:
            if name == "the host":
                way = Way(way.table, np.copy, lambda: None)
            found[name] = public.of_size(way, run.count)
            digests.add(way.table.digest())
    return found | {"same": len(digests) == 1}


def sessions(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return milliseconds a step by level, place of the rows, and number of keys."""
    path.mkdir()
    public = Public(machine, scale)
    found: dict[str, Any] = {}
    for number, level in enumerate(LEVELS):
        with public.prepared(path / str(number), level) as store:
            found[level] = {
                where: {str(size): _step_ms(public, store, size, where) for size in public.sizes}
                for where in ("host", "device")
            }
    return found | {"dim": public.dim}


def _step_ms(public: Public, store: DeviceStore, size: int, where: Any) -> float:
    gradients: Any = public.gradients(size)
    if where == "device":
        gradients = arrays_of(store.device, public.scale)(gradients)
    warm_ups, steps = BATCHES, public.steps(size)
    keys = chain.from_iterable(repeat(public.keys(size)))
    batches = [{NAME: next(keys)} for _ in range(warm_ups + steps)]
    begin = 0.0
    with store.store.session(tables=[NAME], rows=where) as run:
        for number, step in enumerate(run.steps(batches, keys=lambda batch: batch)):
            if number == warm_ups:
                store.wait()
                begin = time.perf_counter()
            step.lookup()
            step.update({NAME: gradients})
        with store.engine.reading():
            wait(store.device)
        return 1e3 * (time.perf_counter() - begin) / steps


@contextlib.contextmanager
def _served(
    machine: Machine, scale: Scale, path: pathlib.Path, cache_bytes: int, **settings: Any
) -> Iterator[tuple[Any, Arrays, Callable[[], None]]]:
    """Yield a client's store, what makes arrays of its GPU, and what waits for that."""
    path.mkdir()
    if not scale.emulated:
        import cupy

        options = ["--device", "cuda:0", "--socket", str(path / "socket")]
        for name, value in settings.items():
            options += ["--" + name.replace("_", "-"), str(value)]
        server = serving.Server(path / "store", cache_bytes, *options, transport="shared_memory")
        with contextlib.closing(server):
            yield server.store, cupy.asarray, cupy.cuda.Device(0).synchronize
        return
    from tests.kernels.emulation.peer import EmulatedGpu

    gpu, store, socket = EmulatedGpu(), path / "store", str(path / "socket")
    with (
        patch("embstore_client.device_segment.opened_gpu", lambda: gpu),
        ServerHere(
            lambda: embstore.open(
                store, device=machine.device(), cache_bytes=cache_bytes, **settings
            ),
            store,
            socket=socket,
        ),
        connect(f"unix:{socket}") as client,
    ):
        yield client, gpu.array, gpu.synchronize

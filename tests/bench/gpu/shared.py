"""A trainer beside its server on one GPU: lookup and update through memory of the GPU that the two
share, beside shared memory of the host, and beside a store in the trainer's own process.

The same batches in each, rows resident, rows into an output of the trainer. A time is that of a
call until the trainer's stream is done with it, in the mean over the repeats. The server is a
process of its own; emulated, it shares this one.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np

import embstore
from embstore_client import connect
from tests.bench import serving
from tests.bench.gpu.machine import Machine, wait
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import NAME, Arrays, DeviceStore
from tests.bench.stores import create_table
from tests.serving import Server as ServerHere

KEYS_MAX = 200_000
CACHE_BYTES_MAX = 2 << 30


class Calls:
    """The calls of one way to the rows."""

    def __init__(self, scale: Scale) -> None:
        self._repeats = max(scale.repeats, 2)
        self.keys_count = min(scale.keys, KEYS_MAX)
        self.rows, self.dim = 2 * self.keys_count, min(128, max(scale.dims))
        rng = np.random.default_rng(scale.seed)
        self.keys = rng.integers(0, self.rows, self.keys_count)
        shape = (self.keys_count, self.dim)
        self.gradients = rng.standard_normal(shape, np.float32) * np.float32(0.01)
        self.no_rows = np.zeros(shape, np.float32)

    def measure(
        self,
        lookup: Callable[[], None],
        update: Callable[[], None],
        synchronize: Callable[[], None],
    ) -> dict[str, float]:
        found = {}
        for name, call in (("lookup", lookup), ("update", update)):
            for _ in range(2):
                call()
            synchronize()
            began = time.perf_counter()
            for _ in range(self._repeats):
                call()
            synchronize()
            found[f"{name}_ms"] = 1e3 * (time.perf_counter() - began) / self._repeats
        return found

    def of_table(
        self, table: Any, array: Arrays, synchronize: Callable[[], None]
    ) -> dict[str, float]:
        """Measure a table's handle, with arrays of a kind."""
        keys, gradients, out = map(array, (self.keys, self.gradients, self.no_rows))
        return self.measure(
            lambda: table.lookup(keys, out=out),
            lambda: table.update(keys, gradients),
            synchronize,
        )


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return the milliseconds of both calls, each way, and whether the digests are the same."""
    path.mkdir()
    calls, cache_bytes = Calls(scale), min(scale.cache_bytes, CACHE_BYTES_MAX)
    found: dict[str, Any] = {"keys": calls.keys_count, "dim": calls.dim}
    found["in process"] = _in_process(machine, calls, path / "own", cache_bytes)
    digests = set()
    for name in ("the GPU", "the host"):
        with served(machine, scale, path / name.replace(" ", "-"), cache_bytes) as beside:
            store, array, synchronize = beside
            table = create_table(store, NAME, calls.rows, calls.dim)
            how = (array, synchronize) if name == "the GPU" else (np.copy, lambda: None)
            found[name] = calls.of_table(table, *how)
            digests.add(table.digest())
    found["same"] = len(digests) == 1
    return found


def _in_process(
    machine: Machine, calls: Calls, path: pathlib.Path, cache_bytes: int
) -> dict[str, float]:
    device = machine.device()
    device.warm_up()
    with contextlib.closing(
        DeviceStore(path, device, cache_bytes=cache_bytes, rows=calls.rows, dim=calls.dim)
    ) as own:
        upload = device.memory.upload
        d_keys, d_gradients = upload(calls.keys), upload(calls.gradients)
        d_out = device.memory.allocate(calls.keys_count, np.float32, width=calls.dim)
        return calls.measure(
            lambda: own.lookup(d_keys, d_out),
            lambda: own.update(d_keys, d_gradients),
            lambda: wait(device),
        )


@contextlib.contextmanager
def served(
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
        patch("embstore_client.device_area.opened_gpu", lambda: gpu),
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

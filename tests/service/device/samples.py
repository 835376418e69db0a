"""A served store on an emulated GPU, and a trainer on an emulated GPU of its own beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import embstore
from embstore import commands as c
from embstore.config import RowWiseAdagrad, Sgd, Uniform
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import COMPUTE
from embstore.handles.store import Store
from embstore_proto.device_places import aligned
from embstore_server.path.traffic import Traffic
from tests.kernels.emulation.exports import open_bytes
from tests.kernels.emulation.peer import EmulatedGpu
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.service.faults.served import Served, on_loop_call

TRANSPORT = "shared_memory"
ROWS, DIM, WIDE = 400, 12, 64
COUNT = 300
"""Keys of a call, which repeat."""
SEGMENT_BYTES = 2 << 20
"""Of the smallest segment."""
SEED = 31
PATIENCE_S = 30.0


class Changes:
    """What a client changes in its segment: keys, and gradients behind them."""

    def __init__(self, gpu: EmulatedGpu, contents: Callable[[], tuple[Any, Any]]) -> None:
        self._gpu, self._contents = gpu, contents
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        keys, grads = self._contents()
        for segment in self._gpu.open_segments:
            content = segment.content
            content[: keys.nbytes] = keys.view(np.uint8)
            low = aligned(keys.nbytes)
            content[low : low + grads.nbytes] = grads.reshape(-1).view(np.uint8)


class ChangingRuntime(EmulatedRuntime):
    """A server's runtime, with a segment that changes before each piece of its work."""

    changes: Changes | None = None

    def give(self, work: Callable[[], None], stream: int = COMPUTE) -> None:
        def changed() -> None:
            if self.changes is not None:
                self.changes()
            work()

        super().give(changed, stream)


class GpuServer(Served):
    """A server whose rows are on an emulated GPU; `runtime` is that."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.runtime = ChangingRuntime(name="cuda:0")
        device = GpuDevice(self.runtime, 1)
        options = {"durability": settings.pop("durability")} if "durability" in settings else {}
        options["cache_bytes"] = settings.pop("cache_bytes", 1 << 20)
        options["host_cache_bytes"] = 0
        super().__init__(path, lambda: embstore.open(path, device=device, **options), **settings)
        self.on_engine(make_tables)

    @property
    def traffic(self) -> Traffic:
        """What came by shared memory."""
        return self.service.traffic[TRANSPORT]


def make_tables(store: Store) -> None:
    """Make tables of two pools, of each two with the same rows, unless they are there."""
    if store.tables():
        return
    for name in ("narrow", "narrow-2"):
        store.create_table(
            name, dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1),
            initializer=Uniform(-1, 1), seed=5,
        )  # fmt: skip
    for name in ("wide", "wide-2"):
        store.create_table(
            name, dim=WIDE, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(-1, 1), seed=6
        )


def batch(rng: np.random.Generator, count: int, dim: int) -> tuple[Any, Any]:
    """Return keys that repeat, and gradients."""
    keys = rng.integers(0, ROWS, count)
    return keys, rng.standard_normal((count, dim)).astype(np.float32)


class Trainer:
    """A client, and its GPU."""

    def __init__(self, store: Store, gpu: EmulatedGpu) -> None:
        self.store, self.gpu = store, gpu

    def array(self, content: Any, **how: Any) -> Any:
        """Return an array of its GPU."""
        return self.gpu.array(content, **how)

    def out(self, count: int, dim: int, **how: Any) -> Any:
        """Return an array for rows."""
        return self.gpu.array(np.full((count, dim), 7, np.float32), **how)

    def table(self, name: str) -> Any:
        """Return a table's handle."""
        return self.store.table(name)


class Lent(tuple[int, int, int]):
    """Bytes of device segments, bytes lent in all, and bytes that clients have open."""

    @staticmethod
    def of(server: GpuServer) -> "Lent":
        """Look."""

        def look() -> Lent:
            inflight = server.service.inflight
            of_host = server.traffic.segment_bytes
            segment_bytes = server.traffic.device_segment_bytes
            return Lent((segment_bytes, inflight.lent_bytes - of_host, open_bytes()))

        found: Lent = on_loop_call(look)
        return found


NOTHING_LENT = Lent((0, 0, 0))


def rng() -> np.random.Generator:
    """Return the same generator for every test."""
    return np.random.default_rng(SEED)


def wire_of(trainer: Trainer) -> Any:
    """Return what carries a trainer's calls."""
    return trainer.store.executor.transport.wire  # type: ignore[attr-defined]


def assert_same(server: GpuServer, *pairs: tuple[str, str]) -> None:
    """Check that tables of each pair have the same rows, and that the store is whole."""

    def check(store: Any) -> None:
        keys = np.arange(ROWS)
        for names in pairs:
            (weights, state), (others, their_state) = (
                store.table(name).read_rows(keys) for name in names
            )
            assert np.array_equal(weights, others) and np.array_equal(state, their_state)
            assert store.table(names[0]).t == store.table(names[1]).t
        store.check_integrity()

    server.on_engine(check)


def lookup_of(trainer: Trainer, keys: Any) -> Any:
    """Return the command of a lookup."""
    return c.Lookup((c.TableKeys("narrow", None, trainer.array(keys)),))

"""A store on the device, called as a trainer in its process would: keys, gradients and outputs are
arrays of the device, and nothing of a call but its sizes is on the host."""

import pathlib
from typing import Any

import embstore
from embstore.commands import UpdateOptions
from embstore.device.base import Gradients
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import DeviceArray
from embstore.tables import reads, writes
from embstore.tables.state import Share
from tests.bench.stores import create_table

NAME = "ads"


class DeviceStore:
    """A store with one table, row-wise Adagrad over uniform rows; `options` go to embstore.open."""

    def __init__(
        self,
        path: pathlib.Path,
        device: GpuDevice,
        *,
        cache_bytes: int,
        rows: int,
        dim: int,
        **options: Any,
    ) -> None:
        self.device = device
        self.store = embstore.open(path, device=device, cache_bytes=cache_bytes, **options)
        self.table = create_table(self.store, NAME, rows, dim)
        self.engine: Any = self.store.executor.tables
        self._state = self.engine.find(NAME)
        self.pool = self._state.pool

    def lookup(self, d_keys: DeviceArray, d_out: DeviceArray) -> None:
        """Write the rows of keys to an output of the device."""
        with self.engine.reading():
            share = Share(self._state, d_keys)
            reads.lookup([share], [d_out], admit=True, stages=self.engine.stages)

    def update(self, d_keys: DeviceArray, d_gradients: DeviceArray) -> None:
        with self.engine.writing(None):
            writes.update(
                [Share(self._state, d_keys, Gradients(rows=d_gradients))],
                UpdateOptions(),
                stages=self.engine.stages,
            )

    def finish_merges(self) -> None:
        """Run all merges that are due; the engine is held, since its background runs them too."""
        with self.engine.reading():
            self.engine.storage.merges.finish()

    def stages_ms(self) -> dict[str, float]:
        """Return what the engine's stages have taken the host so far."""
        return {name: 1e3 * seconds for name, seconds in self.engine.stages.seconds().items()}

    def close(self) -> None:
        self.store.close()


def since(before: dict[str, float], after: dict[str, float], calls: int) -> dict[str, float]:
    """Return what a call added to each of some sums."""
    return {name: (total - before.get(name, 0.0)) / calls for name, total in after.items()}

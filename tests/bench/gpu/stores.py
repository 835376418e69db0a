"""A store on the device, called as a trainer in its process would call it. Keys, gradients and
outputs are arrays of the device, and nothing of a call except its sizes is on the host.
"""

import pathlib
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

import embstore
from embstore.cache.sizes import Sizes, least_bytes
from embstore.commands import UpdateOptions
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import DeviceArray
from embstore.device.slabs import METADATA_BYTES
from embstore.device.values import Gradients
from embstore.errors import StoreClosedError
from embstore.layout import Layout
from embstore.tables import reads, writes
from embstore.tables.state import Share
from tests.bench.gpu.machine import timer_of, wait
from tests.bench.gpu.scale import Scale
from tests.bench.stores import create_table

NAME = "ads"

FREE_BYTES = 4
"""What the host counts for a slot of level two beside its row."""

Arrays = Callable[[Any], Any]
"""Returns an array where a trainer has it."""


class DeviceStore:
    """A store with one table, row-wise Adagrad over uniform rows; `options` go to embstore.open,
    without level two unless they say so."""

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
        options = {"host_cache_bytes": 0} | options
        self.store = embstore.open(path, device=device, cache_bytes=cache_bytes, **options)
        self.table = create_table(self.store, NAME, rows, dim)
        self.engine: Any = self.store.executor.tables
        self._state = self.engine.find(NAME)
        self.pool = self._state.pool
        self._committing: threading.Thread | None = None

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

    def commit(self) -> None:
        """Commit in slices between calls, as a store does by itself."""
        self.store.executor.commits.commit()

    def begin_commit(self) -> None:
        """Have a thread commit, unless it is still at the last commit."""
        if self._committing is None or not self._committing.is_alive():
            self._committing = threading.Thread(target=self._commit_until_closed)
            self._committing.start()

    def _commit_until_closed(self) -> None:
        with suppress(StoreClosedError):
            self.commit()

    def wait(self) -> None:
        """Wait for all that the device was given; in turn, since the background gives it work."""
        with self.engine.reading():
            wait(self.device)

    def stages_ms(self) -> dict[str, float]:
        """Return what the engine's stages have taken the host so far."""
        return {name: 1e3 * seconds for name, seconds in self.engine.stages.seconds().items()}

    def sums(self) -> dict[str, dict[str, float]]:
        """Return what only grows: the pool's counters, stages, and what the runtime was asked for.

        Of the device the background has its part.
        """
        with self.engine.reading():
            counters = vars(self.pool.counters).items()
            return {
                "counters": {name: value for name, value in counters if value is not None},
                "stages_ms": self.stages_ms(),
                "device": dict(timer_of(self.device).asked),
            }

    def close(self) -> None:
        self.store.close()

    def abandon(self) -> None:
        """Close, and commit nothing more."""
        self.store.executor.abandon()
        if self._committing is not None:
            self._committing.join()


class OfTheDevice:
    """An array in the memory of an emulated device, as another library shows it."""

    def __init__(self, d_array: DeviceArray, shape: tuple[int, ...]) -> None:
        self._d_array, self._shape = d_array, shape
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": d_array.dtype.str,
            "data": (d_array.address, False),
            "version": 2,
        }

    def __getitem__(self, rows: slice) -> "OfTheDevice":
        d_array = self._d_array[rows]
        return OfTheDevice(d_array, (len(d_array), *self._shape[1:]))


def arrays_of(device: GpuDevice, scale: Scale) -> Arrays:
    """Return what makes arrays of the device as a trainer's library does."""
    if scale.emulated:
        upload = device.memory.upload
        return lambda array: OfTheDevice(upload(np.ascontiguousarray(array)), array.shape)
    import cupy

    return cupy.asarray  # type: ignore[no-any-return]


def level_two_for(slots: int, dim: int) -> int:
    """Return a budget in which level two comes to about so many slots."""
    return slots * (_layout(dim).row_bytes + FREE_BYTES)


def budget_for(slots: int, dim: int, device: GpuDevice, below: int = 0) -> int:
    """Return a budget in which a pool comes to about so many slots, with so many in level two."""
    layout = _layout(dim)
    slot_bytes = Sizes.of(layout, 1, device).slot_bytes
    sizes = Sizes.of(layout, slots * slot_bytes, device)
    count = -(-slots // sizes.slab_slots) * sizes.slab_slots
    # The index is made for the slots that there may be, of which the last slab is not granted.
    index_bytes = device.memory.index_bytes(count + sizes.slab_slots)
    needed = max(count * slot_bytes + index_bytes + sizes.staging_bytes, least_bytes([sizes]))
    return needed + below * METADATA_BYTES + device.memory.index_bytes(below)


def _layout(dim: int) -> Layout:
    return Layout(dim, 1, "rowwise_adagrad")


def since(before: Mapping[str, float], after: Mapping[str, float], calls: int) -> dict[str, float]:
    """Return what a call added to each of some sums."""
    return {name: (total - before.get(name, 0.0)) / calls for name, total in after.items()}

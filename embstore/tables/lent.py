"""The device of an embedded store, lent to its trainer (`embstore.handles.lent`).

The trainer's rows are in slots of the device's memory, outside the cache. The kernels that read and
update these rows are the same as for the store's rows. An update that takes effect later uses other
slots: the rows are copied to these slots and updated there, and are copied back when the update
takes effect.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows, as_rows, refusal
from embstore.commands import Bags
from embstore.config import TableConfig
from embstore.device.base import Device
from embstore.device.values import Array, Batch, Gradients, TableParameters
from embstore.errors import InvalidArgumentError
from embstore.handles.lent import LentRows, SlotGradients, Slots, SlotSums
from embstore.layout import VALUE, Layout
from embstore.tables.callers import bag_gradients

_ROWS_MAX = 1 << 40
"""More rows than there can be slots. Slots are passed to kernels as keys of a table with this
number of rows."""
_SLAB_BYTES = 4 << 20
"""Approximate bytes of one allocation of slots."""
_LEAST_SLOTS = 256
"""The least number of slots in an allocation."""


@dataclass(frozen=True)
class Lent:
    """The `LentDevice` of a store."""

    device: Device
    turn: Callable[[], AbstractContextManager[Any]]

    @property
    def is_queued(self) -> bool:
        """See `LentDevice`."""
        return self.device.is_queued

    def rows(self, config: TableConfig, count: int) -> LentRows:
        """See `LentDevice`."""
        return QueuedLentRows(self, config, count)

    def named(self, slots: Slots) -> Batch:
        """Return a batch of slots, one per position, whose `unique_keys` are the slots. Call this
        with the engine."""
        return self.device.keys.distinct([(0, _ROWS_MAX, slots)])

    def spread(self, batch: Batch, inverse: NDArray[np.int32]) -> Batch:
        """Return a batch whose positions are `inverse`, indices of the batch's slots. Call this
        with the engine."""
        return replace(
            batch,
            inverse=self.device.memory.upload(np.ascontiguousarray(inverse, np.int32)),
            bounds=np.array([0, len(inverse)]),
            is_distinct=False,
        )

    def summed(self, given: Mapping[str, SlotGradients], scale: float) -> dict[str, SlotSums]:
        """See `LentDevice`."""
        rows, keys, begun = self.device.rows, self.device.keys, {}
        with self.turn():
            for table, own in given.items():
                gradients = self._gradients(table, own)
                batch = keys.again(self.named(own.slots))
                if own.inverse is not None:
                    batch = self.spread(batch, own.inverse)
                sums = self.device.memory.allocate(len(own.slots), VALUE, width=own.dim)
                rows.sum_by_key(batch, [gradients], np.float32(scale), sums)
                begun[table] = batch, sums
            keys.synchronize(*(batch for batch, _ in begun.values()))
        return {t: SlotSums(sums, batch.found.large >= 0) for t, (batch, sums) in begun.items()}

    def _gradients(self, table: str, given: SlotGradients) -> Gradients:
        count = len(given.slots) if given.inverse is None else len(given.inverse)
        if given.bags is None:
            return Gradients(self._taken(table, given.rows, (count, given.dim)))
        shape = len(given.bags.offsets) - 1, given.dim
        return bag_gradients(self._taken(table, given.rows, shape), given.bags)

    def _taken(self, table: str, rows: Any, shape: tuple[int, int]) -> Rows | Array:
        """Check a trainer's gradients, and return them in the form that kernels use. Call this with
        the engine."""
        try:
            there = self.device.memory.adopt(rows, VALUE, 2)
        except InvalidArgumentError as exc:
            raise InvalidArgumentError(f"table {table!r}: gradients: {exc}") from exc
        if there is None:
            return as_rows(rows, shape, table, "gradients")
        if (len(there), there.width) != shape:
            raise refusal(table, f"gradients of shape {shape}", (len(there), there.width))
        return there

    def shown(self, sums: Any) -> Any:
        """See `LentDevice`."""
        return _Shown(sums)

    def to_host(self, sums: Sequence[Any]) -> list[Rows]:
        """See `LentDevice`."""
        with self.turn():
            asked = [self.device.memory.ask(array) for array in sums]
            return [
                answer().reshape(len(array), array.width)
                for answer, array in zip(asked, sums, strict=True)
            ]


class _Shown:
    """An array of the device, with the array interface of other libraries. The array is read with
    the engine, after the work that makes the array, so a reader need not wait for a stream."""

    def __init__(self, array: Any) -> None:
        self._array = array  # keeps the memory alive
        self.__cuda_array_interface__ = {
            "shape": (len(array), array.width),
            "typestr": VALUE.str,
            "data": (array.address, True),
            "version": 3,
            "stream": None,
        }


class _SlotMemory:
    """Slots of one layout, at least as many as were requested. Callers have the engine."""

    def __init__(self, lent: Lent, layout: Layout) -> None:
        self._memory = lent.device.memory
        self._slab_slots = self._memory.slab_slots(
            max(_SLAB_BYTES // layout.row_bytes, _LEAST_SLOTS)
        )
        self._count = 0
        self.there = self._memory.allocate_slots(layout)
        self._memory.reserve_slots(self.there, 0, self._memory.slots_max, self._slab_slots)

    def grow(self, count: int) -> None:
        """Grow to `count` slots, if there are fewer.

        Raises
        ------
        CapacityError : the device does not have enough memory.
        """
        if count > self._count:
            high = -(-count // self._slab_slots) * self._slab_slots
            self._memory.add_slots(self.there, self._count, high)
            self._count = high


class _Copies:
    """A marker in place of updated rows, which are in the slots for copies."""


class QueuedLentRows:
    """The `LentRows` of a device that queues work."""

    def __init__(self, lent: Lent, config: TableConfig, count: int) -> None:
        """Allocate `count` slots.

        Raises
        ------
        CapacityError : the device does not have enough memory.
        """
        self._lent = lent
        self._layout = Layout(config.dim, config.state_dim, config.optimizer.kind)
        with lent.turn():
            self._rows, self._copies = (_SlotMemory(lent, self._layout) for _ in range(2))
        self.grow(count)

    def grow(self, count: int) -> None:
        """See `LentRows`."""
        with self._lent.turn():
            self._rows.grow(count)

    def take(self, slots: Slots) -> Any:
        """See `LentRows`."""
        with self._lent.turn():
            out, d_out = self._made(len(slots))
            batch = self._lent.named(slots)
            self._lent.device.rows.gather(
                self._rows.there.rows, batch.unique_keys, batch, self._layout.dim, [d_out]
            )
        return out

    def pooled(self, slots: Slots, inverse: NDArray[np.int32], bags: Bags) -> Any:
        """See `LentRows`."""
        with self._lent.turn():
            out, d_out = self._made(len(bags.offsets) - 1)
            batch = self._lent.named(slots)
            self._lent.device.rows.gather_pooled(
                self._rows.there.rows,
                batch.unique_keys,
                self._lent.spread(batch, inverse),
                bags.offsets,
                bags.mode == "mean",
                bags.weights,
                d_out,
            )
        return out

    def _made(self, count: int) -> tuple[Any, Array]:
        memory = self._lent.device.memory
        out = memory.empty(count, self._layout.dim)
        return out, memory.adopt(out, VALUE, 2, write=True)

    def read(self, slots: Slots) -> tuple[Rows, Rows]:
        """See `LentRows`."""
        with self._lent.turn():
            return self._parts(self._lent.device.rows.read_rows(self._rows.there.rows, slots))

    def copied(self, slots: Slots) -> Callable[[], tuple[Rows, Rows]]:
        """See `LentRows`."""
        device = self._lent.device
        with self._lent.turn():
            named = self._lent.named(slots).unique_keys
            copies = device.memory.allocate_rows(len(slots), self._layout)
            device.rows.gather_rows(self._rows.there.rows, named, copies, 0)

        def to_host() -> tuple[Rows, Rows]:
            with self._lent.turn():
                return self._parts(device.rows.read_rows(copies, np.arange(len(slots))))

        return to_host

    def _parts(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return weights and state of whole rows."""
        dim, end = self._layout.dim, self._layout.dim + self._layout.state_dim
        return rows[:, :dim], rows[:, dim:end]

    def updated(self, slots: Slots, gradients: Any, scalars: Rows) -> tuple[Any, Any]:
        """See `LentRows`."""
        places = np.arange(len(slots))
        with self._lent.turn():
            self._copies.grow(len(slots))
            copy = self._lent.device.rows.copy_slots
            copy(self._rows.there.rows, slots, self._copies.there.rows, places)
            self._apply(self._copies, places, gradients, scalars)
        return _Copies(), None

    def update(self, slots: Slots, gradients: Any, scalars: Rows) -> None:
        """See `LentRows`."""
        with self._lent.turn():
            self._apply(self._rows, slots, gradients, scalars)

    def _apply(self, to: _SlotMemory, slots: Slots, gradients: Any, scalars: Rows) -> None:
        device, named = self._lent.device, self._lent.named(slots).unique_keys
        sums = device.memory.upload(gradients) if isinstance(gradients, np.ndarray) else gradients
        parameters = _parameters(scalars)
        device.rows.apply(self._layout.optimizer, to.there, named, named, sums, parameters)

    def write(self, slots: Slots, weights: Any, state: Any) -> None:
        """See `LentRows`."""
        rows = self._lent.device.rows
        with self._lent.turn():
            if isinstance(weights, _Copies):
                places = np.arange(len(slots))
                rows.copy_slots(self._copies.there.rows, places, self._rows.there.rows, slots)
                return
            whole = np.zeros((len(slots), self._layout.stride), self._layout.element)
            dim, end = self._layout.dim, self._layout.dim + self._layout.state_dim
            whole[:, :dim], whole[:, dim:end] = weights, state
            rows.scatter_rows(whole, self._rows.there.rows, slots)


def _parameters(scalars: Rows) -> TableParameters:
    """Return the kernels' parameters for an update of a pool with one table; only the scalars are
    set."""
    none = np.zeros(1, VALUE)
    return TableParameters(
        scalars.reshape(1, -1), none.view(np.int8), none.reshape(1, 1), none.view(np.uint32), none
    )

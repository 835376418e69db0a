"""Weights and optimizer state of rows at a trainer, in slots.

FAE (Adnan et al., VLDB 2022) does not transfer the optimizer state. Here the weights and the state
of a row are read and written together.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import update_rows
from embstore.arrays import Rows
from embstore.config import TableConfig

Slots = NDArray[np.int64]


class TrainersRows(Protocol):
    """Weights and state of one table's rows at a trainer, by slot, in any memory. `HostRows`
    describes each method."""

    def take(self, slots: Slots) -> Any: ...
    def read(self, slots: Slots) -> tuple[Rows, Rows]: ...
    def updated(self, slots: Slots, gradients: Rows, scalars: Rows) -> tuple[Any, Any]: ...
    def update(self, slots: Slots, gradients: Rows, scalars: Rows) -> None: ...
    def write(self, slots: Slots, weights: Any, state: Any) -> None: ...
    def grow(self, count: int) -> None: ...


class HostRows:
    """Weights and state of one table's rows at a trainer, by slot, in NumPy arrays."""

    def __init__(self, config: TableConfig, count: int) -> None:
        self._kind = config.optimizer.kind
        self._weights = self._zeros(count, config.dim)
        self._state = self._zeros(count, config.state_dim)

    def _zeros(self, *shape: int) -> Any:
        return np.zeros(shape, np.float32)

    def take(self, slots: Slots) -> Any:
        """Return a copy of the weights of slots, (n, dim), in the trainer's memory."""
        # No slot is out of range, so "clip" changes nothing; "raise" would take longer than the
        # copy.
        return self._weights.take(slots, axis=0, mode="clip")

    def read(self, slots: Slots) -> tuple[Rows, Rows]:
        """Return copies of the weights and state of slots, on the host."""
        return self.take(slots), self._state.take(slots, axis=0, mode="clip")

    def updated(self, slots: Slots, gradients: Rows, scalars: Rows) -> tuple[Any, Any]:
        """Return the weights and state of distinct slots after an update. The rows do not change.

        Raises
        ------
        DeviceError : this thread flushes denormals to zero, so its results would have other bits.
        """
        weights, state = self.read(slots)
        update_rows(self._kind, weights, state, np.arange(len(slots)), gradients, scalars)
        return weights, state

    def update(self, slots: Slots, gradients: Rows, scalars: Rows) -> None:
        """Apply an update to distinct slots in place: write the result of `updated`.

        Raises
        ------
        DeviceError : this thread flushes denormals to zero; nothing has changed.
        """
        update_rows(self._kind, self._weights, self._state, slots, gradients, scalars)

    def write(self, slots: Slots, weights: Any, state: Any) -> None:
        """Set weights and state of distinct slots, to arrays from `updated` or host arrays."""
        self._weights[slots] = weights
        self._state[slots] = state

    def grow(self, count: int) -> None:
        """Grow to `count` slots, if there are fewer; the existing slots keep their rows."""
        for name in ("_weights", "_state"):
            before = getattr(self, name)
            if count > len(before):
                rows = self._zeros(count, before.shape[1])
                rows[: len(before)] = before
                setattr(self, name, rows)

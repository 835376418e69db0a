"""A device that a store in this process lends its trainer, for rows that the trainer has there.

A trainer that computes where the store's rows are wants its own rows there, too: the rows of a hot
set, or the rows in flight. They lie outside the cache, and are read, summed and updated by the
store's kernels, so that the bits are the same. One thread uses a device at a time; so each method
is a turn among the store's calls. `embstore.tables.lent` does it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.commands import Bags
from embstore.config import TableConfig

Slots = NDArray[np.int64]


class SlotGradients(NamedTuple):
    """A trainer's gradients of distinct slots of one table."""

    slots: Slots  # (u,)
    dim: int
    rows: Any  # (n, dim), or (bags, dim): of the host, or of the device
    inverse: NDArray[np.int32] | None = None
    """The slot of each occurrence, (n,), below u; each slot occurs. None: once, in order."""
    bags: Bags | None = None
    """The bags that the occurrences lie in; None: no bags."""


class SlotSums(NamedTuple):
    """One sum for each slot."""

    sums: Any  # (u, dim) on the device; any other form that a `LentDevice` or its rows take
    may_be_refused: bool
    """Whether rule 9 may refuse one."""


class LentRows(Protocol):
    """Weights and optimizer state of one table's rows on a lent device, by slot."""

    def grow(self, count: int) -> None:
        """Grow to `count` slots, if there are fewer; the existing slots keep their rows.

        Raises
        ------
        CapacityError : the device has no such memory.
        """

    def take(self, slots: Slots) -> Any:
        """Return the weights of slots, repeated or not, (n, dim): a new array of the device, as
        `LookupStep` makes them ON_DEVICE."""

    def pooled(self, slots: Slots, inverse: NDArray[np.int32], bags: Bags) -> Any:
        """Return the pooled weights of bags of slots, (bags, dim), as `take` does.

        inverse : (n,), which of the slots each occurrence is, below their number
        """

    def read(self, slots: Slots) -> tuple[Rows, Rows]:
        """Return weights and state of slots, copies on the host."""

    def copied(self, slots: Slots) -> Callable[[], tuple[Rows, Rows]]:
        """Copy weights and state of slots on the device, and return a function that brings the
        copies to the host. Any thread may call it."""

    def updated(self, slots: Slots, gradients: Any, scalars: Rows) -> tuple[Any, Any]:
        """Return updated copies of distinct slots' weights and state. `write` puts them in place,
        as often as it is called before the next call of this method.

        Parameters
        ----------
        gradients : (u, dim), of the host, or `SlotSums.sums`
        scalars : (8,), of `embstore.arithmetic.update_scalars`
        """

    def update(self, slots: Slots, gradients: Any, scalars: Rows) -> None:
        """Apply an update to distinct slots in place; arguments as in `updated`."""

    def write(self, slots: Slots, weights: Any, state: Any) -> None:
        """Set weights and state of distinct slots, to arrays from `updated` or of the host."""


class LentDevice(Protocol):
    """The device, for a trainer of this process. Any thread."""

    is_queued: bool
    """Whether it has memory of its own; else it uses the host's, as a trainer's arrays do."""

    def rows(self, config: TableConfig, count: int) -> LentRows:
        """Return `count` slots for rows of a table.

        Raises
        ------
        CapacityError : the device has no such memory left over by the cache.
        """

    def summed(self, given: Mapping[str, SlotGradients], scale: float) -> dict[str, SlotSums]:
        """Return the scaled sums of tables by slot (contract.md, rules 2, 4, 8), and wait for the
        device once: it has finished with the gradients.

        Raises
        ------
        InvalidArgumentError : gradients of another shape or dtype, or on another device.
        """

    def shown(self, sums: Any) -> Any:
        """Return `SlotSums.sums` as an array that the store takes as a trainer's gradients."""

    def to_host(self, sums: Sequence[Any]) -> list[Rows]:
        """Return copies of `SlotSums.sums`."""

"""The device of a store in this process, lent to a trainer that keeps rows of its own there.

A trainer that computes on the store's device needs its own rows there too: the rows of a hot set,
or, if the trainer runs ahead of the store, the rows of its last steps. These rows lie outside the
cache. The store's kernels read, sum and update them, so that the bits are the same. One thread uses
a device at a time, so each method waits until the store's calls that came earlier have ended.
`embstore.tables.lent` implements the interface.
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
    rows: Any  # (n, dim), or (bags, dim); on the host or on the device
    inverse: NDArray[np.int32] | None = None
    """For each occurrence, the index of its slot in `slots`, shape (n,); every slot occurs. None:
    each slot occurs once, in order."""
    bags: Bags | None = None
    """The bags that contain the occurrences; None: no bags."""


class SlotSums(NamedTuple):
    """One sum of gradients for each slot."""

    sums: Any  # (u, dim) on the device, or another form that a `LentDevice` or its rows accept
    may_be_refused: bool
    """Whether rule 9 of contract.md may refuse one of the sums."""


class LentRows(Protocol):
    """Weights and optimizer state of one table's rows on a lent device, by slot."""

    def grow(self, count: int) -> None:
        """Grow to `count` slots, if there are fewer. The existing slots keep their rows.

        Raises
        ------
        CapacityError : the device does not have enough memory.
        """

    def take(self, slots: Slots) -> Any:
        """Return the weights of slots, shape (n, dim), as a new array on the device, like the
        arrays of a `LookupStep` with ON_DEVICE. Slots can be repeated."""

    def pooled(self, slots: Slots, inverse: NDArray[np.int32], bags: Bags) -> Any:
        """Return the pooled weights of bags of slots, (bags, dim), as a new array on the device.

        inverse : (n,), the index of each occurrence among the slots
        """

    def read(self, slots: Slots) -> tuple[Rows, Rows]:
        """Return copies of the weights and state of slots, on the host."""

    def copied(self, slots: Slots) -> Callable[[], tuple[Rows, Rows]]:
        """Copy weights and state of slots on the device, and return a function that copies them to
        the host. Any thread can call the function."""

    def updated(self, slots: Slots, gradients: Any, scalars: Rows) -> tuple[Any, Any]:
        """Return updated copies of the weights and state of distinct slots. `write` stores the
        copies in the slots, and can be called repeatedly until the next call of `updated`.

        Parameters
        ----------
        gradients : (u, dim), on the host, or `SlotSums.sums`
        scalars : (8,), from `embstore.arithmetic.update_scalars`
        """

    def update(self, slots: Slots, gradients: Any, scalars: Rows) -> None:
        """Apply an update to distinct slots in place, with the arguments of `updated`."""

    def write(self, slots: Slots, weights: Any, state: Any) -> None:
        """Set weights and state of distinct slots to arrays from `updated`, or to arrays on the
        host."""


class LentDevice(Protocol):
    """The lent device, for a trainer in this process. Any thread can call the methods."""

    is_queued: bool
    """Whether the device has its own memory and a queue of work. If not, it uses the host's memory,
    in which the trainer's arrays are too."""

    def rows(self, config: TableConfig, count: int) -> LentRows:
        """Return `count` slots for rows of a table.

        Raises
        ------
        CapacityError : the cache leaves too little of the device's memory.
        """

    def summed(self, given: Mapping[str, SlotGradients], scale: float) -> dict[str, SlotSums]:
        """Return, for each table, the scaled sum of gradients per slot (contract.md, rules 2, 4,
        8). The call waits for the device once; when it returns, the device no longer reads the
        gradients.

        Raises
        ------
        InvalidArgumentError : gradients have another shape or dtype, or are on another device.
        """

    def shown(self, sums: Any) -> Any:
        """Return `SlotSums.sums` as an array that the store accepts as a trainer's gradients."""

    def to_host(self, sums: Sequence[Any]) -> list[Rows]:
        """Return copies of `SlotSums.sums` on the host."""

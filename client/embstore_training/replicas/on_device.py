"""Gradients of a trainer's rows on a device that a store has lent (`embstore.handles.lent`).

This module finds the distinct keys with a gradient, and adds the sums of all ranks. `bags` and
`update` do the same for arrays on the host.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.commands import Bags, UpdateOptions
from embstore.handles.lent import LentDevice, SlotGradients, Slots, SlotSums
from embstore.handles.sessions import SomeGradients, StepBags
from embstore_training.bags import Of, as_gradients, check_inverse, positions_of
from embstore_training.read_ahead import OnceKeys
from embstore_training.replicas.ranks import AllGather
from embstore_training.replicas.update import Sums, Trained, agreed, check_rates, is_accepted


class Occurring(NamedTuple):
    """Gradients of a step's distinct keys. Keys without a gradient are left out."""

    positions: NDArray[np.int64] | None  # (u,) ascending; None: all keys have gradients
    rows: Any  # (n, dim), or (bags, dim)
    inverse: NDArray[np.int32] | None = None  # (n,), index of each row's key; None: 0, 1, 2, ...
    bags: Bags | None = None

    def at(self, slots: Slots, dim: int) -> SlotGradients:
        """Return these gradients by slot. `slots`, (u,), are the slots of the keys that have
        gradients."""
        return SlotGradients(slots, dim, self.rows, self.inverse, self.bags)


def occurring(table: str, once: OnceKeys, of: Of, given: Any) -> Occurring:
    """Return a step's gradients of a table.

    Raises
    ------
    InvalidArgumentError : the number of gradients differs from the number of keys or bags; an index
        is not below the number of keys; or bags have wrong offsets.
    """
    rows, count = as_gradients(given, once, of, table), len(once.keys)
    if isinstance(rows, SomeGradients):
        return Occurring(positions_of(rows, once, table), rows.rows)
    if of == "unique" or (of == "keys" and once.is_identity):
        return Occurring(None, rows)
    if of == "keys":
        return Occurring(None, rows, once.inverse)
    check_inverse(table, of, count)
    if of.offsets is not None:
        of = StepBags.of(*of, table=table)
    occurs = np.zeros(count, np.bool_)
    occurs[of.inverse] = True
    if occurs.all():
        return Occurring(None, rows, of.inverse, of.bags)
    numbers = np.cumsum(occurs, dtype=np.int32) - np.int32(1)  # numbers the keys that occur
    return Occurring(np.flatnonzero(occurs), rows, numbers[of.inverse], of.bags)


def agreed_on_device(
    lent: LentDevice,
    keys: Mapping[str, Keys],
    summed: Mapping[str, SlotSums],
    options: UpdateOptions,
    tables: Mapping[str, Trained],
    all_gather: AllGather | None,
) -> dict[str, Sums] | None:
    """Return the scaled sums of all ranks as `agreed` does; the sums of a single rank stay on the
    device.

    Parameters
    ----------
    keys, summed : this rank's keys and sums, by table. The sums of a single rank are scaled by
        `options`; if there are several ranks, the sums are not scaled yet

    Raises
    ------
    The errors of `agreed`.
    """
    if all_gather is not None:
        rows = lent.to_host([own.sums for own in summed.values()])
        share = {name: (keys[name], of) for name, of in zip(summed, rows, strict=True)}
        return agreed(share, options, tables, all_gather)
    check_rates(summed, options, tables)
    for name, own in summed.items():
        if own.may_be_refused:
            (on_host,) = lent.to_host([own.sums])
            if not is_accepted(name, Sums(keys[name], on_host), options):
                return None
    return {name: Sums(keys[name], own.sums) for name, own in summed.items()}

"""The gradients of one rank in the device's memory, until the gradients of the other ranks arrive.

A caller can change its arrays when its call returns, and other ranks send their gradients later.
Therefore kernels sum a rank's gradients by key as soon as they arrive (contract.md, rule 2), and
the sums stay on the device. `embstore.tables.ranks` later adds the sums in rank order; the sum of a
single gradient is the gradient itself. The sums are copied to the host only if there is a command
log, which records an update before the update is applied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore import commands as c
from embstore.arrays import Keys
from embstore.device.values import Array, Batch, Gradients
from embstore.layout import VALUE
from embstore.lookahead.step import KeptSums, Part, Positions, RankShare
from embstore.tables.state import TableState

_ONE = np.float32(1.0)


class _Given(NamedTuple):
    """The gradients of one rank for one table."""

    table: TableState
    gradients: Gradients
    keys: Keys  # keys with a gradient, (u,) in announced order
    ids: NDArray[np.int32] | None  # (n,), index of each gradient's key; None: one each
    positions: Positions | None  # of `keys` among the announced keys; None: all announced keys


class _Summing(NamedTuple):
    """The gradients of one rank in one pool while the device sums them."""

    part: Part
    given: list[_Given]
    batch: Batch
    sums: Array  # (u, dim), table after table


def summed(
    share: RankShare, given: Mapping[str, c.StepGradients], *, to_host: bool
) -> tuple[dict[str, KeptSums], bool]:
    """Sum a rank's gradients by key. Return the sums by table, to be kept until the other ranks'
    gradients arrive, and whether rule 9 may refuse one of the sums. Engine thread only. Waits for
    the device once.

    Parameters
    ----------
    given : gradients of some tables, on the host or on the device; work that writes gradients on
        the device may still be queued
    to_host : whether to copy the sums to the host, for the command log

    Raises
    ------
    InvalidArgumentError : gradients have another shape or dtype, or are on another device.
    """
    gradients = {own.table.name: own.gradients for own in share.gradient_shares(given)}
    parts: list[_Summing] = []
    for part in share.parts:
        named = [
            _of_table(table, keys, given[table.name], of_table)
            for table, keys in zip(part.tables, part.keys, strict=True)
            if (of_table := gradients.get(table.name)) is not None
        ]
        if named:
            parts.append(_begun(part, named))
    memory = [own.part.pool.device.memory for own in parts if to_host]
    asked = [of.ask(own.sums) for of, own in zip(memory, parts, strict=False)]
    for own in parts:
        own.part.pool.device.keys.synchronize(own.batch)
    on_host = [answer() for answer in asked] or [np.empty(0, np.float32)] * len(parts)
    kept = [sums for own, rows in zip(parts, on_host, strict=True) for sums in _kept(own, rows)]
    may_be_refused = any(own.batch.found.large >= 0 for own in parts)
    return {sums.table: sums for sums in kept}, may_be_refused


def _of_table(table: TableState, keys: Keys, sent: c.StepGradients, own: Gradients) -> _Given:
    ids = None if sent.inverse is None else sent.inverse.view(np.int32)
    places = sent.positions if ids is None else ids
    if places is None:
        return _Given(table, own, keys, None, None)
    occurs = np.zeros(len(keys), np.bool_)
    occurs[places] = True
    if not occurs.all():
        positions = np.flatnonzero(occurs).astype(np.int32)
        if ids is not None:
            ids = np.cumsum(occurs, dtype=np.int32)[ids] - np.int32(1)
        return _Given(table, own, keys[positions], ids, positions)
    return _Given(table, own, keys, ids, None)


def _begun(part: Part, given: list[_Given]) -> _Summing:
    """Queue the summation of one pool's tables."""
    device = part.pool.device
    if len(given) == len(part.tables) and all(own.positions is None for own in given):
        keys = part.batch()
    else:
        keys = device.keys.distinct([g.table.segment(g.keys) for g in given])
    batch = device.keys.again(keys)
    if any(own.ids is not None for own in given):
        ids = [np.arange(len(g.keys), dtype=np.int32) if g.ids is None else g.ids for g in given]
        batch = replace(
            batch,
            inverse=device.memory.upload(_joined(ids, batch.bounds)),
            bounds=np.cumsum([0, *map(len, ids)]),
            is_distinct=False,
        )
    sums = device.memory.allocate(len(batch.unique_keys), VALUE, width=part.pool.layout.dim)
    device.rows.sum_by_key(batch, [own.gradients for own in given], _ONE, sums)
    return _Summing(part, given, batch, sums)


def _joined(ids: Sequence[NDArray[np.int32]], bounds: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the ids of several tables as ids of one batch. In `ids`, each table's ids begin at
    0."""
    return np.concatenate(
        [own + np.int32(first) for own, first in zip(ids, bounds, strict=False)], dtype=np.int32
    )


def _kept(of: _Summing, on_host: NDArray[Any]) -> list[KeptSums]:
    """Return the sums of one pool by table. `on_host` contains a copy of this pool's sums, or is
    empty."""
    rows, low, kept = on_host.reshape(-1, of.part.pool.layout.dim), 0, []
    for own in of.given:
        high = low + len(own.keys)
        name, sums = own.table.name, of.sums[low:high]
        kept.append(KeptSums(name, sums, own.positions, rows[low:high]))
        low = high
    return kept

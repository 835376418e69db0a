"""Finds gradients that rule 9 of contract.md refuses because their sums are not finite or too
large.

If rule 9 refuses one sum of gradients, the whole update is refused, or skipped. Each shard has only
some of the sums, so the sums are checked here, before anything is sent. Almost always it is enough
to check a bound: no sum of n gradients is larger than n times the largest gradient.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arithmetic import (
    LARGE,
    add_ranks,
    largest,
    scale_sums,
    sum_by_key,
    unaccepted,
    unique,
)
from embstore.arrays import Rows

_FINITE = 1e38
"""Sums below this bound are finite in fp32, all rounding errors included."""

Ranks = Sequence[Sequence[c.TableGradients]]


def are_small(gradients: Rows, count: int, scale: float) -> bool:
    """Return whether it is certain that rule 9 accepts every sum of `count` gradients."""
    most = largest(gradients) * count
    return most < _FINITE and most * scale < LARGE / 2  # False if it is not a number


def refused(ranks: Ranks, scale: float) -> c.UpdateRanks | None:
    """Return the part of an update whose sum is refused; None: all sums are accepted.

    The part contains the first table of the update with a refused sum, and the first key with such
    a sum.
    """
    names: list[str] = []
    for part in (part for parts in ranks for part in parts):
        if part.table not in names:
            names.append(part.table)
    for name in names:
        of_table = [[part for part in parts if part.table == name] for parts in ranks]
        found = _first(of_table, scale)
        if found is not None:
            return c.UpdateRanks(tuple(c.Rank(tuple(_only(p, found) for p in s)) for s in of_table))
    return None


def _first(ranks: Ranks, scale: float) -> Any:
    parts = [part for shares in ranks for part in shares]
    count = sum(len(part.keys) for part in parts)
    if all(are_small(part.gradients, count, scale) for part in parts):
        return None
    sums = []
    for part in parts:
        keys, inverse = unique(part.keys)
        sums.append((keys, sum_by_key(inverse, len(keys), part.gradients)))
    keys, inverse = unique(np.concatenate([own for own, _ in sums]))
    ids = np.split(inverse, np.cumsum([len(own) for own, _ in sums])[:-1])
    total = add_ranks(len(keys), [(i, own) for i, (_, own) in zip(ids, sums, strict=True)])
    return next((key for key, _ in unaccepted(keys, scale_sums(total, scale))), None)


def _only(part: c.TableGradients, key: Any) -> c.TableGradients:
    mine = part.keys == key
    return c.TableGradients(part.table, part.table_id, part.keys[mine], part.gradients[mine])


def not_a_number(part: c.TableGradients, dim: int) -> c.TableGradients:
    """Return a gradient of NaN for one key of a table. It makes every shard skip the update."""
    return c.TableGradients(
        part.table, part.table_id, np.zeros(1, np.int64), np.full((1, dim), np.nan, np.float32)
    )

"""What one update of a replica is: its options, the sums of all ranks, and what it changes.

An update is computed beside the rows and then put in place, from a list that is kept until all of
it is done. An interrupt in between (Ctrl-C) leaves that list, and what comes next does it again: to
put a row in place twice is the same as once. So an update happens whole or not at all here, too. A
**receipt** holds the list, and whoever gave the receipt can tell by it whether the update is taken:
both become so by one assignment.

Ranks compare before they add. Options that differ are a caller's mistake, which all may mend; a t
or a rate that differs says that their replicas are no longer alike, and nothing may be added.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from embstore.arithmetic import add_ranks, scale_sums, unique, update_scalars
from embstore.arrays import Keys, Rows, fp32_scalar
from embstore.checks.arguments import UINT64_MAX, one_of
from embstore.commands import UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore_training.hotcold.ranks import Message, Share, float_bits, others_than
from embstore_training.hotcold.rows import HotTable, Slots


class Sums(NamedTuple):
    """One table's gradients, summed by key (and over ranks), then scaled."""

    keys: Keys  # (u,) distinct
    gradients: Rows  # (u, dim)


def checked(options: UpdateOptions) -> UpdateOptions:
    """Return options as numbers that fp32 has, or raise InvalidArgumentError."""
    one_of(options.on_nonfinite, "on_nonfinite", ("refuse", "skip"))
    rate = options.learning_rate
    if rate is not None:
        rate = fp32_scalar(rate, "learning_rate")
    scale = fp32_scalar(options.gradient_scale, "gradient_scale")
    return UpdateOptions(rate, scale, options.on_nonfinite)


def numbers_of(options: UpdateOptions) -> list[int]:
    """Return options as ranks compare them."""
    rate, skips = options.learning_rate, options.on_nonfinite == "skip"
    bits = float_bits(rate or 0.0), float_bits(options.gradient_scale)
    return [int(rate is None), *bits, int(skips)]


class Change(NamedTuple):
    """What one update makes of one table; to put it in place twice is the same as once."""

    table: HotTable
    slots: Slots
    weights: Any
    state: Any
    t: int
    dirty_count: int

    def put_in_place(self) -> None:
        """Have the table's rows as this says."""
        table = self.table
        table.rows.write(self.slots, self.weights, self.state)
        table.is_dirty[self.slots] = True
        table.dirty_count, table.t = self.dirty_count, self.t


def change(table: HotTable, sums: Sums, options: UpdateOptions) -> Change:
    """Return what an update makes of a table, whose rows stay as they are for now."""
    slots, t = table.pulled_slots(sums.keys), table.t + 1
    if t > UINT64_MAX:
        raise InvalidArgumentError(
            f"table {table.config.name!r}: t is {UINT64_MAX} and cannot grow"
        )
    given = options.learning_rate
    rate = table.learning_rate if given is None else given
    scalars = update_scalars(table.config.optimizer, t, rate, table.config.dim)
    weights, state = table.rows.updated(slots, sums.gradients, scalars)
    dirty_count = table.dirty_count + int(np.count_nonzero(~table.is_dirty[slots]))
    return Change(table, slots, weights, state, t, dirty_count)


class Receipt:
    """By which whoever updates can tell whether it was done, though it ended by an interrupt."""

    def __init__(self) -> None:
        self.changes: list[Change] | None = None
        """None: the update was not taken. Empty: it is in place."""

    @property
    def is_taken(self) -> bool:
        """Whether the update is one of the replica's: it must not be done again."""
        return self.changes is not None

    def synchronize(self) -> None:
        """Put the update in place; one that was interrupted in this as well."""
        for change in self.changes or ():
            change.put_in_place()
        if self.is_taken:
            self.changes = []


def check_alike(messages: list[Message], options: list[int], tables: list[int]) -> None:
    """Check that all ranks update alike replicas alike."""
    count = len(options)
    if others := others_than(options, (t.numbers[:count] for t in messages)):
        raise InvalidArgumentError(
            f"expected all ranks to update with the same options, found others of ranks {others}; "
            "all may do it again"
        )
    if others := others_than(tables, (t.numbers[count:] for t in messages)):
        raise InvalidArgumentError(
            "expected all ranks to have tables of the same t and learning rate, found others of "
            f"ranks {others}: a rank left out or repeated an update, or pulled at another rate"
        )


def scaled(shares: list[Share], gradient_scale: float) -> dict[str, Sums]:
    """Add the ranks' sums of each table in rank order, and scale (contract.md, rules 6 and 4)."""
    names = dict.fromkeys(name for share in shares for name in share)
    sums = {}
    for name in names:
        parts = [share[name] for share in shares if name in share]
        keys, total = parts[0] if len(parts) == 1 else _added(parts)
        sums[name] = Sums(keys, scale_sums(total, gradient_scale))
    return sums


def _added(parts: list[tuple[Keys, Rows]]) -> tuple[Keys, Rows]:
    keys, inverse = unique(np.concatenate([keys for keys, _ in parts]))
    ids = np.split(inverse, np.cumsum([len(keys) for keys, _ in parts])[:-1])
    total = add_ranks(len(keys), [(i, sums) for i, (_, sums) in zip(ids, parts, strict=True)])
    return keys, total


def first_nonfinite(sums: Mapping[str, Sums]) -> tuple[str, int] | None:
    """Return table and key of the first gradient that is not finite (contract.md, rule 9)."""
    for name, (keys, gradients) in sums.items():
        is_finite = np.isfinite(gradients).all(axis=1)
        if not is_finite.all():
            return name, int(keys[~is_finite][0])
    return None

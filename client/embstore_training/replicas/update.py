"""One update of rows at trainers: its options, the sums of all ranks, and the updated rows.

Ranks compare their options, t and learning rates before they add their sums. If options differ, a
caller made a mistake, and all ranks can try again with the right options. If t or rates differ, the
replicas of the ranks differ, and nothing may be added.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from embstore.arithmetic import add_ranks, scale_sums, unaccepted, unique, update_scalars
from embstore.arrays import Keys, Rows, fp32_scalar, refused_gradient
from embstore.checks.arguments import UINT64_MAX, one_of
from embstore.commands import UpdateOptions
from embstore.config import TableConfig
from embstore.errors import InvalidArgumentError
from embstore_training.replicas.ranks import (
    AllGather,
    Message,
    Share,
    Verb,
    float_bits,
    meet,
    others_than,
)
from embstore_training.replicas.rows import Slots, TrainersRows


class Sums(NamedTuple):
    """One table's gradients, summed by key and over ranks, and then scaled."""

    keys: Keys  # (u,) distinct
    gradients: Rows  # (u, dim)


def checked(options: UpdateOptions) -> UpdateOptions:
    """Return options with their numbers rounded to fp32, or raise InvalidArgumentError."""
    one_of(options.on_nonfinite, "on_nonfinite", ("refuse", "skip"))
    rate = options.learning_rate
    if rate is not None:
        rate = fp32_scalar(rate, "learning_rate")
    rates = {
        name: fp32_scalar(own, f"table {name!r}: learning_rate")
        for name, own in options.learning_rates.items()
    }
    scale = fp32_scalar(options.gradient_scale, "gradient_scale")
    return UpdateOptions(rate, scale, options.on_nonfinite, rates)


def numbers_of(options: UpdateOptions, tables: Iterable[str]) -> list[int]:
    """Return options as a list of integers, which ranks compare."""
    rates = [options.rate_of(name) for name in sorted(tables)]
    bits = [number for rate in rates for number in (int(rate is None), float_bits(rate or 0.0))]
    return [*bits, float_bits(options.gradient_scale), int(options.on_nonfinite == "skip")]


class Trained(NamedTuple):
    """The properties of a table that ranks compare before an update."""

    config: TableConfig
    t: int
    learning_rate: float


def agreed(
    own: Share,
    options: UpdateOptions,
    tables: Mapping[str, Trained],
    all_gather: AllGather | None,
) -> dict[str, Sums] | None:
    """Return the scaled sums of all ranks, by table; None: rule 9 of contract.md refuses a sum, so
    the update is skipped.

    Parameters
    ----------
    own : this rank's gradients, each key once
    options : the update's options, as returned by `checked`
    tables : all tables of the replica

    Raises
    ------
    InvalidArgumentError : rule 9 refuses a sum, and the options do not say that the update is
        skipped; an optimizer does not accept a learning rate; or ranks have different options or
        different replicas.
    """
    numbers, rates = numbers_of(options, tables), []
    for name in sorted(tables) if all_gather is not None else ():
        given = options.rate_of(name)
        rates += [
            tables[name].t,
            float_bits(tables[name].learning_rate if given is None else given),
        ]
    messages = meet(all_gather, Verb.UPDATE, [*numbers, *rates], own)
    check_alike(messages, numbers, rates)
    sums = scaled([message.share for message in messages], options.gradient_scale)
    check_rates(sums, options, tables)
    return sums if all(is_accepted(name, own, options) for name, own in sums.items()) else None


def check_rates(
    names: Iterable[str], options: UpdateOptions, tables: Mapping[str, Trained]
) -> None:
    """Check that the optimizers of some tables accept the options' learning rate, if there is
    one."""
    for name in names:
        given = options.rate_of(name)
        if given is not None:
            what = f"table {name!r}: learning_rate"
            tables[name].config.optimizer.check_learning_rate(given, what)


def is_accepted(name: str, sums: Sums, options: UpdateOptions) -> bool:
    """Return whether rule 9 accepts a table's scaled sums. If it does not, and the options do not
    say that the update is skipped, raise InvalidArgumentError."""
    wrong = unaccepted(*sums)
    if wrong and options.on_nonfinite != "skip":
        raise refused_gradient(name, *wrong[0])
    return not wrong


def updated(
    rows: TrainersRows, table: Trained, slots: Slots, gradients: Rows, options: UpdateOptions
) -> tuple[Any, Any]:
    """Return the weights and state of distinct slots after one more update of a table.

    Raises
    ------
    InvalidArgumentError : t cannot grow.
    DeviceError : this thread flushes denormals to zero.
    """
    return rows.updated(slots, gradients, scalars_of(table, options))


def scalars_of(table: Trained, options: UpdateOptions) -> Rows:
    """Return the optimizer's scalars for one more update of a table. Raise InvalidArgumentError if
    t cannot grow."""
    t = table.t + 1
    if t > UINT64_MAX:
        raise InvalidArgumentError(
            f"table {table.config.name!r}: t is {UINT64_MAX} and cannot grow; create another "
            "table, and copy the rows to it"
        )
    given = options.rate_of(table.config.name)
    rate = table.learning_rate if given is None else given
    return update_scalars(table.config.optimizer, t, rate, table.config.dim)


def check_alike(messages: list[Message], options: list[int], tables: list[int]) -> None:
    """Check that all ranks have equal options, and equal t and learning rate per table."""
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
    """Add the ranks' sums of each table in rank order, and scale the totals (contract.md, rules 6,
    4)."""
    names = dict.fromkeys(name for share in shares for name in share)
    sums = {}
    for name in names:
        parts = [share[name] for share in shares if name in share]
        keys, total = parts[0] if len(parts) == 1 else _added(parts)
        # A factor of 1 changes no number. No copy is made, because sums are not changed later.
        sums[name] = Sums(keys, total if gradient_scale == 1 else scale_sums(total, gradient_scale))
    return sums


def _added(parts: list[tuple[Keys, Rows]]) -> tuple[Keys, Rows]:
    keys, inverse = unique(np.concatenate([keys for keys, _ in parts]))
    ids = np.split(inverse, np.cumsum([len(keys) for keys, _ in parts])[:-1])
    total = add_ranks(len(keys), [(i, sums) for i, (_, sums) in zip(ids, parts, strict=True)])
    return keys, total

"""Checks of the parts of commands: keys, rows, gradients and bags. Each table may be named only
once."""

from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, TypeVar

import numpy as np

from embstore import commands as c
from embstore.arrays import (
    as_counts,
    as_offsets,
    as_rows,
    fp32_scalar,
    keys_of,
    length,
    refusal,
    rows_of,
)
from embstore.checks.arguments import integer, one_of
from embstore.errors import InvalidArgumentError, TableNotFoundError

P = TypeVar("P")


def table_name(name: Any) -> str:
    """Return a name, if a table can have it; the executor checks whether the table exists."""
    if not isinstance(name, str) or not name.isprintable():
        raise TableNotFoundError(f"no table {name!r}; the name of a table is text")
    return name


def _each_once(tables: Iterable[Any]) -> None:
    names = [part.table for part in tables]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"table {twice!r} is named twice in one call")


def parts_of(parts: tuple[P, ...], check: Callable[[P], P]) -> tuple[P, ...]:
    """Return parts in normal form: the same tuple if they already are in normal form."""
    found = tuple(map(check, parts))
    is_same = len(found) == len(parts) and all(map(is_, found, parts))
    return parts if is_same else found


def tables_of(parts: tuple[P, ...], check: Callable[[P], P]) -> tuple[P, ...]:
    """Return parts in normal form. No two of them may name the same table."""
    found = parts_of(parts, check)
    if len(found) > 1:
        _each_once(found)
    return found


_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)


def _is_plain(array: Any, dtype: np.dtype[Any], dimensions: int) -> bool:
    """Return whether a quick test shows that an array is in normal form; False: a full check is
    needed."""
    if type(array) is not np.ndarray or array.dtype is not dtype or array.ndim != dimensions:
        return False
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def table_keys(part: c.TableKeys) -> c.TableKeys:
    name, keys = table_name(part.table), part.keys
    if not _is_plain(keys, _INT64, 1):
        keys = keys_of(keys, name)
    counts = None if part.counts is None else as_counts(part.counts, length(keys), name)
    if keys is part.keys and counts is part.counts:
        return part
    return c.TableKeys(name, part.table_id, keys, counts)


def gradients_of(part: c.TableGradients) -> c.TableGradients:
    name, keys, gradients = table_name(part.table), part.keys, part.gradients
    if not _is_plain(keys, _INT64, 1):
        keys = keys_of(keys, name)
    if not (_is_plain(gradients, _FLOAT32, 2) and len(gradients) == length(keys)):
        gradients = rows_of(gradients, length(keys), name, "gradients")
    if keys is part.keys and gradients is part.gradients:
        return part
    return c.TableGradients(name, part.table_id, keys, gradients)


def checked_bags(bags: c.Bags, key_count: int, table: str) -> c.Bags:
    """Return bags in normal form; together they have `key_count` keys."""
    offsets = as_offsets(bags.offsets, key_count, table)
    if bags.mode not in ("sum", "mean"):
        raise refusal(table, 'mode "sum" or "mean"', repr(bags.mode))
    weights = bags.weights
    if weights is not None:
        if bags.mode != "sum":
            raise InvalidArgumentError(f'table {table!r}: weights go with mode "sum" only')
        weights = as_rows(weights, (key_count,), table, "weights")
        if not np.isfinite(weights).all():
            raise InvalidArgumentError(f"table {table!r}: expected finite weights")
    return c.Bags(offsets, bags.mode, weights)


def options_of(options: c.UpdateOptions) -> c.UpdateOptions:
    rate = options.learning_rate
    if rate is not None:
        rate = fp32_scalar(rate, "learning_rate")
    scale = fp32_scalar(options.gradient_scale, "gradient_scale")
    one_of(options.on_nonfinite, "on_nonfinite", ("refuse", "skip"))
    rates = options.learning_rates
    if rate is options.learning_rate and scale is options.gradient_scale and not rates:
        return options
    rates = {
        table_name(name): fp32_scalar(own, f"table {name!r}: learning_rate")
        for name, own in rates.items()
    }
    return c.UpdateOptions(rate, scale, options.on_nonfinite, rates)


def one_table(part: c.TableKeys) -> c.TableKeys:
    name = table_name(part.table)
    return c.TableKeys(name, part.table_id, keys_of(part.keys, name))


def added_t(value: Any, table: str) -> int:
    try:
        return integer(value, "add_t", 0)
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"table {table!r}: {exc}") from None

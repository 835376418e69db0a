"""One optimizer update of each row: contract.md rule 4 on rows[slots[i]] with g = sums[i], the
scalars those of table keys[i] >> 40; dirty[slots[i]] = 1.

Preconditions: keys, hence slots, unique. A NaN that arises is written as 0x7fc00000. Every row is
updated by one thread, in a fixed order over dim (rule 3 for a row formula). Split over i.

The formulas are those of `embstore.optimizers`, compiled for one element and inlined in a loop over
the row, which LLVM vectorizes: elements are independent. What depends on the number of an
optimizer's states and scalars is made of tuples, whose length is known when the kernel is compiled.
A record is a row's weights, then its state: an element's state is dim, 2 dim, ... after its weight.
"""

import math
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import (
    PARTIALS,
    canonical,
    element_of,
    row_at,
    sum_of_squares,
    value_of,
    values_at,
)
from embstore.arithmetic.jit import building_block, kernel, operation, prefetch_to_write
from embstore.arrays import KEY_BITS
from embstore.kernels.gather import AHEAD
from embstore.kernels.scatter import prefetch_record
from embstore.optimizers import OPTIMIZERS, Optimizer, copysign, sqrt, where

KINDS = {kind: number for number, kind in enumerate(OPTIMIZERS)}


# What the formulas' operations are in a kernel.


@operation(sqrt)
def _sqrt(x: Any) -> Any:
    return math.sqrt(x)


@operation(copysign)
def _copysign(magnitude: Any, sign: Any) -> Any:
    return math.copysign(magnitude, sign)


@operation(where)
def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.float32(x) if condition else np.float32(y)


@cache
def _tuple_of(count: int, item: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a building block: (item(0, *arguments), ..., item(count - 1, *arguments))."""
    if count == 1:
        return building_block(lambda *arguments: (item(0, *arguments),))
    before, last = _tuple_of(count - 1, item), count - 1

    @building_block
    def items(*arguments: Any) -> Any:
        return before(*arguments) + (item(last, *arguments),)  # noqa: RUF005

    return items


@building_block
def _read(place: int, record: jit.Elements, first: int, step: int) -> Any:
    return value_of(record[first + place * step])


@building_block
def _write(place: int, record: jit.Elements, first: int, step: int, values: Any) -> None:
    record[first + place * step] = element_of(canonical(values[place]))


@building_block
def _all_scalars(of_table: jit.Float32s) -> Any:
    return (
        of_table[0], of_table[1], of_table[2], of_table[3],
        of_table[4], of_table[5], of_table[6], of_table[7],
    )  # fmt: skip


def _scalars_of_elements(optimizer: type[Optimizer]) -> Callable[..., tuple[Any, ...]]:
    """Return a building block: what the element formula takes, after the row formula, if any."""
    scalar_count, state_count = len(optimizer.scalars), len(optimizer.row_state)
    if optimizer.row_formula is None:
        return building_block(lambda record, end, g, scalars, partials: scalars[:scalar_count])
    read, write = _tuple_of(state_count, _read), _tuple_of(state_count, _write)
    formula = building_block(optimizer.row_formula)

    @building_block
    def of_elements(
        record: jit.Elements, end: int, g: jit.Float32s, scalars: Any, partials: jit.Float32s
    ) -> Any:
        squares = sum_of_squares(g, partials)
        new = formula(squares, *read(record, end, 1), *scalars[:scalar_count])
        write(record, end, 1, new[1:])
        return new[:1]

    return of_elements


def _update(optimizer: type[Optimizer]) -> Callable[..., None]:
    """Return a building block: one update of a row's record by an optimizer."""
    array_count = 1 + len(optimizer.element_state)
    read, write = _tuple_of(array_count, _read), _tuple_of(array_count, _write)
    formula = building_block(optimizer.element_formula)
    scalars_of_elements = _scalars_of_elements(optimizer)

    @building_block
    def update(
        record: jit.Elements, g: jit.Float32s, of_table: jit.Float32s, partials: jit.Float32s
    ) -> None:
        dim = g.shape[0]
        scalars = scalars_of_elements(
            record, dim * array_count, g, _all_scalars(of_table), partials
        )
        for d in range(dim):
            write(record, d, dim, formula(g[d], *read(record, d, dim), *scalars))

    return update


def _or_else(others: Callable[..., None], optimizer: type[Optimizer]) -> Callable[..., None]:
    """Return a building block: update by `optimizer` if `kind` is its number, else by `others`."""
    number, update = KINDS[optimizer.kind], _update(optimizer)

    @building_block
    def choose(kind: int, *arguments: Any) -> None:
        if kind == number:
            update(*arguments)
        else:
            others(kind, *arguments)

    return choose


@building_block
def _no_update(kind: int, *arguments: Any) -> None:
    """What is left of `_update_record` when no optimizer has this number."""


# Reversed: a number is compared with that of the first optimizer first.
_update_record: Callable[..., None] = reduce(_or_else, reversed(OPTIMIZERS.values()), _no_update)


@kernel
def apply(
    kind: jit.Int,  # of KINDS
    rows: jit.Rows,  # (slots, stride)
    slots: jit.Int64sIn,  # (m,), unique
    keys: jit.Int64sIn,  # (m,)
    sums: jit.Float32RowsIn,  # (m, dim)
    scalars: jit.Float32RowsIn,  # (tables, 8)
    dirty: jit.Uint8s,  # (slots,)
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Update the rows of [low, high)."""
    start, stride = rows.ctypes.data, rows.shape[1]
    sums_start, dim = sums.ctypes.data, sums.shape[1]
    scalars_start, columns = scalars.ctypes.data, scalars.shape[1]
    dirty_start = dirty.ctypes.data
    partials = np.empty(PARTIALS, np.float32)
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_record(start, slots[i + AHEAD], stride)
            prefetch_to_write(dirty_start + slots[i + AHEAD])
        g = values_at(sums_start, i, dim)
        of_table = values_at(scalars_start, keys[i] >> KEY_BITS, columns)
        _update_record(kind, row_at(start, slots[i], stride, stride), g, of_table, partials)
        dirty[slots[i]] = 1

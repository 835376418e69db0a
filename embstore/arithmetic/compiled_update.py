"""One optimizer update of a row, compiled (contract.md, rule 4), for the CPU's kernel and for rows
that a trainer keeps.

The formulas are those of `embstore.optimizers`, compiled for one element and inlined in a loop over
the row. LLVM vectorizes this loop, since elements are independent. Code that depends on the number
of an optimizer's states and scalars uses tuples, whose length is known when the kernel is compiled.
A record is a row's weights, then its state: the states of an element are dim, 2 dim, ... elements
after the weight. A NaN that arises is written as 0x7fc00000. A row is updated in a fixed order over
dim (rule 3 for a row formula). If a table has weight decay that is not decoupled, the gradient for
the formulas is computed in a separate array, and the given gradient does not change.

A trainer has weights and state in two arrays, because it looks up weights alone. So a row's record
is assembled in a separate array, and split again afterwards; this array stays in the first-level
cache of the processor.
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
    sum_of_squares,
    value_of,
    values_at,
)
from embstore.arithmetic.denormals import kept
from embstore.arithmetic.jit import building_block, kernel, operation, prefetch_to_write
from embstore.arithmetic.optimizers import DECAY, KEPT
from embstore.arrays import Keys, Rows
from embstore.layout import VALUE_BYTES
from embstore.optimizers import (
    OPTIMIZERS,
    Optimizer,
    copysign,
    decayed_gradient,
    kept_weight,
    sqrt,
    where,
)

KINDS = {kind: number for number, kind in enumerate(OPTIMIZERS)}


# The operations that kernels compile for those of the formulas.


@operation(sqrt)
def _sqrt(x: Any) -> Any:
    return math.sqrt(x)


@operation(copysign)
def _copysign(magnitude: Any, sign: Any) -> Any:
    return math.copysign(magnitude, sign)


@operation(where)
def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.float32(x) if condition else np.float32(y)


_decayed_gradient = building_block(decayed_gradient)
_kept_weight = building_block(kept_weight)


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
def _own_scalars(of_table: jit.Float32s) -> Any:
    return of_table[0], of_table[1], of_table[2], of_table[3], of_table[4], of_table[5]


@building_block
def decayed(address: int, record: jit.Elements, of_table: jit.Float32s, room: jit.Float32s) -> int:
    """Return the address of a row's gradient after weight decay: the address of `room` (dim,) if
    the table has weight decay, else the given address. If the result were one of two arrays, Numba
    would count references to it, which takes longer than the update of a short row."""
    if not of_table[DECAY] > 0:
        return address
    dim = room.shape[0]
    g = values_at(address, 0, dim)
    for d in range(dim):
        room[d] = _decayed_gradient(g[d], value_of(record[d]), of_table[DECAY])
    made: int = room.ctypes.data
    return made


def _scalars_of_elements(optimizer: type[Optimizer]) -> Callable[..., tuple[Any, ...]]:
    """Return a building block that returns the scalars of the element formula. If the optimizer has
    a row formula, it is applied first."""
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
        dim, kept = g.shape[0], of_table[KEPT]
        scalars = scalars_of_elements(
            record, dim * array_count, g, _own_scalars(of_table), partials
        )
        for d in range(dim):
            old = read(record, d, dim)
            w = _kept_weight(old[0], kept)
            write(record, d, dim, formula(g[d], w, *old[1:], *scalars))

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
    """The last case of `update_record`, if no optimizer has this number."""


# Reversed, so that `kind` is compared with the number of the first optimizer first.
update_record: Callable[..., None] = reduce(_or_else, reversed(OPTIMIZERS.values()), _no_update)
"""A building block: update(kind, record, g, scalars, partials). It overwrites `partials` (32,); g
is the gradient at the address that `decayed` returns."""


_AHEAD = 8


@building_block
def _prefetch(start: int, slot: int, count: int) -> None:
    """Prefetch the cache lines of a row of float32, for writing."""
    row = start + slot * count * VALUE_BYTES
    for line in range(0, count * VALUE_BYTES, 64):
        prefetch_to_write(row + line)


@kernel
def _update_rows(
    kind: jit.Int,  # of KINDS
    weights: jit.Float32Rows,  # (slots, dim)
    state: jit.Float32Rows,  # (slots, state_dim)
    slots: jit.Int64sIn,  # (m,), distinct
    gradients: jit.Float32RowsIn,  # (m, dim)
    scalars: jit.Float32RowsIn,  # (1, 8)
) -> None:
    dim, state_dim = weights.shape[1], state.shape[1]
    weights_start, state_start = weights.ctypes.data, state.ctypes.data
    gradients_start = gradients.ctypes.data
    of_table = values_at(scalars.ctypes.data, 0, scalars.shape[1])
    record = np.empty(dim + state_dim, np.float32)
    partials, room = np.empty(PARTIALS, np.float32), np.empty(dim, np.float32)
    for i in range(slots.shape[0]):
        if i + _AHEAD < slots.shape[0]:
            _prefetch(weights_start, slots[i + _AHEAD], dim)
            _prefetch(state_start, slots[i + _AHEAD], state_dim)
        of_weights = values_at(weights_start, slots[i], dim)
        of_state = values_at(state_start, slots[i], state_dim)
        for d in range(dim):  # a slice would check for overlap
            record[d] = of_weights[d]
        for d in range(state_dim):
            record[dim + d] = of_state[d]
        at = decayed(gradients_start + i * dim * VALUE_BYTES, record, of_table, room)
        update_record(kind, record, values_at(at, 0, dim), of_table, partials)
        for d in range(dim):
            of_weights[d] = record[d]
        for d in range(state_dim):
            of_state[d] = record[dim + d]


@kept
def update_rows(
    kind: str, weights: Rows, state: Rows, slots: Keys, gradients: Rows, scalars: Any
) -> None:
    """`optimizers.update_rows`. Any thread.

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed. No row has changed.
    """
    _update_rows(KINDS[kind], weights, state, slots, gradients, scalars[None])

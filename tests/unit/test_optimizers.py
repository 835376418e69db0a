"""The descriptions of optimizers: what formulas take, and the operations they are made of."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from embstore.config import Constant, TableConfig
from embstore.optimizers import (
    OPTIMIZERS,
    Adagrad,
    Adam,
    Ftrl,
    RowWiseAdagrad,
    Sgd,
    copysign,
    sqrt,
    where,
)

each_kind = pytest.mark.parametrize("kind", OPTIMIZERS)


@each_kind
def test_formulas_take_the_state_and_scalars_that_are_declared(kind):
    optimizer = OPTIMIZERS[kind]
    taken = list(inspect.signature(optimizer.element_formula).parameters)
    if optimizer.row_formula is None:
        assert not optimizer.row_state
        assert taken == ["g", "w", *optimizer.element_state, *optimizer.scalars]
    else:
        of_row = list(inspect.signature(optimizer.row_formula).parameters)
        assert of_row == ["squares", *optimizer.row_state, *optimizer.scalars]
        assert taken[:-1] == ["g", "w", *optimizer.element_state]


@pytest.mark.parametrize(
    ("optimizer", "wanted"),
    [
        (Sgd(0.5), {}),
        (Adagrad(0.5, 1e-6), {"epsilon": 1e-6, "initial_accumulator": 0.0}),
        (RowWiseAdagrad(0.5, 1e-6, 1), {"epsilon": 1e-6, "initial_accumulator": 1.0}),
        (Adam(0.5), {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
        (Ftrl(0.5, l1=2), {"beta": 1.0, "l1": 2.0, "l2": 0.0}),
    ],
    ids=OPTIMIZERS,
)
def test_identity_names_the_fixed_parameters(optimizer, wanted):
    config = TableConfig.checked("a", dim=4, rows=1, optimizer=optimizer, initializer=Constant(0.0))
    found = config.identity()["optimizer"]
    assert found == {"kind": optimizer.kind, **wanted}
    assert {type(value) for name, value in found.items() if name != "kind"} <= {float}
    again = TableConfig.from_identity(config.identity(), rows=1, learning_rate=0.25)
    assert again.optimizer == replace(optimizer, learning_rate=0.25)


def every_operation(x, y):
    return where(abs(x) <= y, 0.0, copysign(sqrt(y), x)), -x


def test_compiled_operations_have_the_bits_of_numpy():
    numba = pytest.importorskip("numba", reason="needs the extra 'fast'")
    import embstore.arithmetic.compiled_update  # noqa: F401  # registers them
    from embstore.arithmetic.jit import building_block

    compiled = building_block(every_operation)
    values = np.float32([0.0, -0.0, 1e-45, -1e-40, 0.3, -2.0, 3.4e38, np.inf, -np.inf])
    for x in values:
        for y in np.abs(values):
            wanted, found = every_operation(x, y), compiled(x, y)
            assert [np.float32(v).view(np.uint32) for v in found] == [
                np.float32(v).view(np.uint32) for v in wanted
            ]
    types = {signature.return_type for signature in compiled.compiled.nopython_signatures}
    assert types == {numba.types.UniTuple(numba.types.float32, 2)}

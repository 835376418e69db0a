"""The descriptions of optimizers: what formulas take, and the operations they are made of."""

import inspect
import json
from dataclasses import replace

import numpy as np
import pytest

from embstore import arithmetic
from embstore.config import Constant, TableConfig
from embstore.errors import InvalidArgumentError
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
from embstore_client.frameworks import tables
from embstore_client.frameworks.tables import Ids, table_of
from embstore_proto.configs import config_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb
from tests.decayed import DECAYED, name_of

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


@pytest.mark.parametrize("optimizer", DECAYED, ids=name_of)
def test_identity_names_weight_decay(optimizer):
    made = {"dim": 4, "rows": 1, "initializer": Constant(0.0)}
    config = TableConfig.checked("a", optimizer=optimizer, **made)
    plain = TableConfig.checked("a", optimizer=replace(optimizer, weight_decay=0.0), **made)
    added = dict(config.identity()["optimizer"].items() - plain.identity()["optimizer"].items())
    assert added == {
        "weight_decay": 0.3,
        "decoupled_weight_decay": optimizer.decoupled_weight_decay,
    }
    assert isinstance(added["decoupled_weight_decay"], bool)
    again = TableConfig.from_identity(config.identity(), rows=1, learning_rate=0.25)
    assert again.optimizer == replace(optimizer, learning_rate=0.25)
    message = pb.TableConfig()
    message_of(config, message)
    assert config_of(pb.TableConfig.FromString(message.SerializeToString())) == config
    assert table_of(config_of_table(optimizer)).optimizer == optimizer


def config_of_table(optimizer):
    return json.loads(
        json.dumps(tables.config_of(Ids("a", dim=4, rows=1, features=["x"], optimizer=optimizer)))
    )


def test_ftrl_refuses_weight_decay_and_says_what_it_has():
    with pytest.raises(
        InvalidArgumentError, match=r"no weight_decay of Ftrl, found 0\.1: l2= draws"
    ):
        Ftrl(0.5, weight_decay=0.1)
    assert replace(Ftrl(0.5, weight_decay=0), learning_rate=1.0) == Ftrl(1.0)


@pytest.mark.parametrize("given", [0.01, 1, 0, None, "yes"])
def test_how_much_and_of_which_kind_are_not_mixed_up(given):
    with pytest.raises(InvalidArgumentError, match=r"True or False, found .*as weight_decay"):
        Adam(0.5, decoupled_weight_decay=given)


def test_scalars_of_each_optimizer_leave_room_for_weight_decay():
    assert max(len(kind.scalars) for kind in OPTIMIZERS.values()) <= arithmetic.OWN_SCALARS


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

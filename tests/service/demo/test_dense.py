"""The dense check against the reference model, bit for bit."""

import numpy as np
import pytest

from embstore.config import (
    Adagrad,
    Adam,
    Constant,
    Ftrl,
    Initializer,
    Normal,
    Optimizer,
    RowWiseAdagrad,
    Sgd,
    TableConfig,
    Uniform,
)
from embstore_tools.demo.dense import DenseTable, DenseTables
from tests.reference import ReferenceStore

ROWS, DIM = 700, 5
OPTIMIZERS: list[Optimizer] = [
    Sgd(learning_rate=0.1),
    Adagrad(learning_rate=0.05, initial_accumulator=0.1),
    RowWiseAdagrad(learning_rate=0.02),
    Adam(learning_rate=0.01),
    Ftrl(learning_rate=0.05, l1=0.01),
]


def make(optimizer: Optimizer, initializer: Initializer) -> TableConfig:
    return TableConfig.checked(
        "ads", dim=DIM, rows=ROWS, optimizer=optimizer, initializer=initializer
    )


@pytest.mark.parametrize("initializer", [Uniform(-0.1, 0.1), Normal(0.0, 0.1), Constant(0.5)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_rows_and_digest_are_those_of_the_reference(
    optimizer: Optimizer, initializer: Initializer
) -> None:
    dense = DenseTable(make(optimizer, initializer))
    reference = ReferenceStore().create_table(
        "ads", dim=DIM, rows=ROWS, optimizer=optimizer, initializer=initializer
    )
    assert dense.digest() == reference.digest()
    rng = np.random.default_rng(5)
    for count in (300, 1, 0, 200):  # repeated keys, one key, none
        keys = rng.integers(0, ROWS, count) // (1 + rng.integers(0, 40, count))
        gradients = rng.normal(size=(count, DIM)).astype(np.float32)
        assert dense.lookup(keys).tobytes() == reference.lookup(keys).tobytes()
        dense.update(keys, gradients)
        reference.update(keys, gradients)
        assert dense.digest() == reference.digest()


def test_reading_writes_nothing() -> None:
    dense = DenseTable(make(OPTIMIZERS[0], Uniform(-1.0, 1.0)))
    before = dense.digest()
    dense.lookup(np.arange(ROWS))
    assert dense.digest() == before


def test_a_difference_is_named_to_the_bit() -> None:
    tables = DenseTables([make(OPTIMIZERS[2], Uniform(-1.0, 1.0))])
    keys = {"ads": np.array([4, 9, 4])}
    found = {"ads": DenseTable(make(OPTIMIZERS[2], Uniform(-1.0, 1.0))).lookup(keys["ads"])}
    assert tables.difference(found, keys) is None
    found["ads"][1, 2] = np.nextafter(found["ads"][1, 2], np.float32(9))
    assert tables.difference(found, keys) == "table 'ads', key 9"

"""The reference model by itself: orders that vectors do not show, and what a restore brings back.

Its rules are tested beside the arithmetic's (test_arithmetic_*.py), its vectors in tests/docs, and
its commands by the suites that compare them with a store's, row by row (tests/conformance).
"""

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, Constant, Ftrl, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import TableNotFoundError
from tests.reference import ReferenceStore
from tests.unit.plain import bits, fp32

ROWS = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
NO_STATE = np.zeros((1, 0), np.float32)
INF, NAN = np.float32("inf"), np.float32("nan")


def make_table(optimizer=None, *, store=None, name="v", **given):
    usual = {"dim": 4, "rows": 3, "initializer": Uniform(-0.1, 0.1), "seed": 7}
    optimizer = optimizer or Sgd(0.05)
    return (store or ReferenceStore()).create_table(name, optimizer=optimizer, **usual | given)


def content_of(table):
    """Return all of a table that a refused command must leave alone."""
    keys = sorted(table.written)
    weights, state = table.read_rows(keys)
    return table.t, table.rows, table.learning_rate, keys, bits(weights), bits(state)


@pytest.mark.parametrize(
    ("optimizer", "start"),
    [
        (Sgd(0.1), []),
        (Adagrad(0.1, initial_accumulator=0.1), [np.float32(0.1)] * 2),
        (RowWiseAdagrad(0.1, initial_accumulator=0.1), [np.float32(0.1)]),
        (Adam(0.1), [0.0] * 4),
        (Ftrl(0.1), [0.0] * 4),
    ],
)
def test_state_layout_and_start(optimizer, start):
    assert make_table(optimizer, dim=2).read_rows([0])[1].tolist() == [start]


def test_update_sums_occurrences_in_batch_order():
    values = fp32(1e8, 1.0, -1e8, 3.0).reshape(4, 1)  # 1e8 + 1.0 is 1e8
    table = make_table(dim=1, initializer=Constant(0.0))
    table.update([1, 1, 1, 1], values, learning_rate=1.0)
    table.update([2, 2, 2, 2], values[[0, 2, 1, 3]], learning_rate=1.0)
    assert table.lookup([1, 2]).tolist() == [[-3.0], [-4.0]]


def test_ranks_are_added_in_rank_order_after_their_own_sums():
    store = ReferenceStore()
    table = make_table(store=store, dim=1, initializer=Constant(0.0))

    def share(*grads):
        return {"v": ([0] * len(grads), fp32(*grads).reshape(-1, 1))}

    store.update_ranks([share(1e8), share(1.0, -1e8)], learning_rate=1.0)  # 1e8 + (1 - 1e8) = 0
    assert table.lookup([0]).tolist() == [[0.0]]
    store.update_ranks([share(1e8), share(-1e8), share(1.0)], learning_rate=1.0)
    assert table.lookup([0]).tolist() == [[-1.0]]


def test_results_and_arguments_are_not_aliased():
    table, rows = make_table(), ROWS[:1].copy()
    table.assign([0], rows)
    rows[:] = 0
    found = table.lookup([0])
    assert bits(found) == bits(ROWS[:1])
    found[:] = 0
    assert bits(table.lookup([0])) == bits(ROWS[:1])


def test_snapshot_and_restore_return_all_content():
    store = ReferenceStore()
    table, dropped = make_table(Adam(0.01), store=store), make_table(store=store, name="d")
    table.update([0], ROWS[:1])
    snapshot, before = store.snapshot(), [content_of(table), content_of(dropped)]
    for _ in range(2):
        table.update([0, 1], ROWS[:2])
        table.learning_rate = 0.5
        table.grow(table.rows + 1)
        store.drop_table("d")
        with pytest.raises(TableNotFoundError):
            dropped.lookup([0])
        make_table(store=store, name="new")
        number = store.command_number
        store.restore(snapshot)
        assert store.command_number == number + 1
        assert store.tables() == ["d", "v"]
        assert [content_of(table), content_of(dropped)] == before

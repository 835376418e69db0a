"""The reference model by itself: orders that vectors do not show, and what it refuses.

Its rules are tested beside the arithmetic's (test_arithmetic_*.py), its vectors in tests/docs, and
its commands by the suites that compare them with a store's, row by row (tests/conformance).
"""

import math

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, Constant, Ftrl, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import InvalidArgumentError, TableExistsError, TableNotFoundError
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


@pytest.mark.parametrize(
    "other",
    [
        {"dim": 5},
        {"rows": 4},
        {"optimizer": Adam(0.1)},
        {"initializer": Uniform(-0.1, np.nextafter(0.1, 1))},
    ],
)
def test_create_again_returns_the_table_or_refuses_another(other):
    table = make_table()
    assert make_table(store=table._store) is table
    with pytest.raises(TableExistsError):
        make_table(store=table._store, **other)


# What is refused

WRONG_ROWS = {
    "negative key": ([-1], ROWS[:1]),
    "key beyond": ([3], ROWS[:1]),
    "float key": ([0.0], ROWS[:1]),
    "bool key": ([True], ROWS[:1]),
    "uint64": (np.array([0], np.uint64), ROWS[:1]),
    "shape of keys": ([[0]], ROWS[:1]),
    "a row too few": ([0, 1], ROWS[:1]),
    "dim": ([0], ROWS[:1, :3]),
    "float64": ([0], ROWS[:1].astype(np.float64)),
    "int64": ([0], np.ones((1, 4), np.int64)),
}
WRONG_BAGS = {
    "weights of a mean": ([0, 1], [0, 2], "mean", np.ones(2, np.float32)),
    "mode": ([0, 1], [0, 2], "max", None),
    "NaN": ([0, 1], [0, 2], "sum", fp32(1.0, NAN)),
    "infinity": ([0, 1], [0, 2], "sum", fp32(1.0, INF)),
    "a weight too few": ([0, 1], [0, 2], "sum", np.ones(1, np.float32)),
    "float64 weights": ([0, 1], [0, 2], "sum", np.ones(2)),
    "no offsets": ([0, 1], [], "sum", None),
    "end before the keys": ([0, 1], [0, 1], "sum", None),
    "begin after the first": ([0, 1], [1, 2], "sum", None),
    "falling": ([0, 1], [0, 2, 1, 2], "sum", None),
    "float offsets": ([0, 1], [0.0, 2.0], "sum", None),
    "a key beyond": ([0, 3], [0, 2], "sum", None),
}
NUMBERS = [-1.0, math.nan, math.inf, 1e39, "1"]
REFUSED = {
    **{
        f"{verb}: {name}": lambda t, verb=verb, rows=rows: getattr(t, verb)(*rows)
        for name, rows in WRONG_ROWS.items()
        for verb in ("update", "assign")
    },
    **{
        f"put_rows: {name}": lambda t, rows=rows: t.put_rows(*rows, np.zeros((len(rows[0]), 0)), 1)
        for name, rows in WRONG_ROWS.items()
    },
    **{
        f"lookup_pooled: {name}": lambda t, bags=bags: t.lookup_pooled(*bags)
        for name, bags in WRONG_BAGS.items()
    },
    **{
        f"update_pooled: {name}": lambda t, bags=bags: t.update_pooled(
            *bags[:2], ROWS[: max(len(bags[1]) - 1, 0)], *bags[2:]
        )
        for name, bags in WRONG_BAGS.items()
    },
    **{
        f"{name} {value}": lambda t, given={name: value}: t.update([0], ROWS[:1], **given)
        for name in ("gradient_scale", "learning_rate")
        for value in NUMBERS
    },
    **{
        f"rate of the table {value}": lambda t, value=value: setattr(t, "learning_rate", value)
        for value in [*NUMBERS, None]
    },
    **{
        f"add_t {value}": lambda t, value=value: t.put_rows([0], ROWS[:1], NO_STATE, value)
        for value in (-1, 1.0, 2**64 - 1)
    },
    **{f"grow to {rows}": lambda t, rows=rows: t.grow(rows) for rows in (2, 2**40 + 1, 5.0)},
    "on_nonfinite": lambda t: t.update([0], ROWS[:1], on_nonfinite="ignore"),
    "a skipped key beyond": lambda t: t.update([3], ROWS[:1] * NAN, on_nonfinite="skip"),
    "one table of two": lambda t: t._store.update({"v": ([0], ROWS[:1]), "w": ([3], ROWS[:1])}),
    "sum": lambda t: t.update([0, 0], np.full((2, 4), 3e38, np.float32)),
    "square": lambda t: t.update([0], np.full((1, 4), 3e19, np.float32)),
    "sum times 0": lambda t: t.update([0, 0], ROWS[:2] * INF, gradient_scale=0.0),
    "scaled sum": lambda t: t.update([0], np.full((1, 4), 3e38, np.float32), gradient_scale=2.0),
    "sum of ranks": lambda t: t._store.update_ranks(
        [{"v": ([0], np.full((1, 4), 3e38, np.float32))}] * 2, gradient_scale=0.25
    ),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(call):
    table = make_table()
    make_table(store=table._store, name="w")
    table.update([1], ROWS[:1])
    before, number = content_of(table), table._store.command_number
    with pytest.raises(InvalidArgumentError):
        call(table)
    assert (content_of(table), table._store.command_number) == (before, number)


@pytest.mark.parametrize("rate", [0.0, 1e-46])
def test_ftrl_divides_by_the_rate(rate):
    table = make_table(Ftrl(0.05))
    for call in (
        lambda: table.update([0], ROWS[:1], learning_rate=rate),
        lambda: table.update([0], ROWS[:1] * INF, learning_rate=rate, on_nonfinite="skip"),
        lambda: setattr(table, "learning_rate", rate),
    ):
        with pytest.raises(InvalidArgumentError, match="> 0 in fp32"):
            call()
    assert (table.t, table.learning_rate) == (0, 0.05)

"""create_table, table, tables, drop_table."""

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import TableExistsError, TableNotFoundError
from tests.conformance.cases import OPTIMIZERS, assert_same, config, ones, refused


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_table_says_what_it_was_made_of(open_twin, optimizer):
    initializer = Normal(0.5, 2.0)
    made = config(dim=7, rows=99, optimizer=optimizer, initializer=initializer, seed=5)
    table = open_twin().create_table("ads/a-1.x", **made)
    assert (table.name, table.dim, table.rows, table.t) == ("ads/a-1.x", 7, 99, 0)
    assert (table.optimizer, table.initializer, table.seed) == (optimizer, initializer, 5)
    assert table.learning_rate == optimizer.learning_rate


@pytest.mark.parametrize(
    "initializer", [Uniform(-1.0, 2.0), Uniform(3.0, 3.0), Normal(-1.0, 0.0), Constant(-0.0)]
)
def test_unwritten_rows_are_the_initializers(open_twin, initializer):
    twin = open_twin()
    table = twin.create_table("a", **config(dim=13, initializer=initializer))
    assert_same(table.lookup(np.arange(50)), twin.reference.table("a").lookup(np.arange(50)))


def test_default_seed_is_the_names(open_twin):
    twin = open_twin()
    first, second = (twin.create_table(name, **config()) for name in ("v", "w"))
    assert first.seed == 16735848030510122220
    assert not np.array_equal(first.lookup([1]), second.lookup([1]))


def test_created_again_is_the_same_table_as_it_is(open_twin):
    twin = open_twin()
    table = twin.create_table("a", **config())
    twin.on("a", "update", [1], ones(1))
    again = twin.create_table("a", **config(optimizer=Sgd(0.7)))  # the rate is no identity
    assert (again.t, again.learning_rate, again.digest()) == (1, 0.1, table.digest())


def test_created_again_with_the_default_parameters_spelled_out_is_the_same(open_twin):
    twin = open_twin()
    twin.create_table("a", **config(optimizer=Adam(0.1)))
    spelled = Adam(np.float64(0.1), beta1=0.9, beta2=0.999, epsilon=1e-8)
    twin.create_table("a", **config(optimizer=spelled, dim=np.int64(4), rows=np.int64(1000)))


@pytest.mark.parametrize(
    "other",
    [
        {"dim": 8},
        {"seed": 1},
        {"initializer": Uniform(-0.1, 0.2)},
        {"initializer": Constant(0.1)},
        {"optimizer": Sgd(0.1)},
        {"optimizer": RowWiseAdagrad(0.1)},
        {"optimizer": Adagrad(0.1, epsilon=1e-7)},
        {"optimizer": Adagrad(0.1, initial_accumulator=1.0)},
    ],
    ids=str,
)
def test_other_identity_is_refused(open_twin, other):
    twin = open_twin()
    twin.create_table("a", **config(optimizer=Adagrad(0.1)))
    with refused(twin.store, TableExistsError, "table 'a'", '"kind":"adagrad"', "asked for was"):
        twin.store.create_table("a", **config(optimizer=Adagrad(0.1)) | other)


@pytest.mark.parametrize("rows", [999, 2000])
def test_other_rows_are_refused_and_grow_is_named(open_twin, rows):
    twin = open_twin()
    twin.create_table("a", **config())
    parts = ("table 'a'", "1000 rows", f"grow({rows})")
    with refused(twin.store, TableExistsError, *parts):
        twin.store.create_table("a", **config(rows=rows))


def test_rows_of_today_are_those_after_growing(open_twin):
    twin = open_twin()
    twin.create_table("a", **config())
    twin.on("a", "grow", 2000)
    twin.create_table("a", **config(rows=2000))
    with refused(twin.store, TableExistsError, "2000 rows"):
        twin.store.create_table("a", **config(rows=1000))


def test_names_are_listed_in_order(open_twin):
    twin = open_twin()
    for name in ("b", "a/b", "a", "a.b", "...", "0"):
        twin.create_table(name, **config())
    assert twin.store.tables() == ["...", "0", "a", "a.b", "a/b", "b"]


def test_longest_name_opens_again(open_twin):
    twin = open_twin()
    name = "/".join(["x" * 63] * 4)
    assert len(name) == 255
    twin.create_table(name, **config())
    twin.on(name, "update", [1], ones(1))
    twin.reopen()


def test_dropped_table_is_gone_and_starts_anew(open_twin):
    twin = open_twin()
    table = twin.create_table("a", **config())
    fresh = table.lookup([1, 2])
    twin.on("a", "update", [1, 2], ones(2))
    twin.drop_table("a")
    assert twin.store.tables() == []
    with refused(twin.store, TableNotFoundError, "'a'", "none"):
        twin.store.table("a")
    again = twin.create_table("a", **config())
    assert again.t == 0
    assert_same(again.lookup([1, 2]), fresh)


def test_dropped_table_stays_dropped_after_reopening(open_twin):
    twin = open_twin()
    for name in ("a", "b"):
        twin.create_table(name, **config())
        twin.on(name, "update", [1, 2], ones(2))
    twin.store.flush()
    twin.drop_table("a")
    twin.reopen()
    twin.create_table("a", **config())  # under another id: none of the old rows can come back
    assert_same(twin.store.table("a").lookup([1, 2]), twin.reference.table("a").lookup([1, 2]))


def test_name_may_come_back_as_another_table(open_twin):
    twin = open_twin()
    twin.create_table("a", **config())
    twin.on("a", "update", [1], ones(1))
    twin.drop_table("a")
    twin.create_table("a", **config(dim=7, optimizer=Adam(0.1)))
    twin.on("a", "update", [1], ones(1, 7))
    twin.reopen()


@pytest.mark.parametrize("name", ["b", "A", "", None, 7, b"a", ["a"]])
def test_unknown_table_is_named_with_those_there_are(open_twin, name):
    twin = open_twin()
    twin.create_table("a", **config())
    for call in (
        twin.store.table,
        twin.store.drop_table,
        lambda n: twin.store.lookup({n if isinstance(n, str) else "b": [1]}),
    ):
        with refused(twin.store, TableNotFoundError, "tables are: 'a'"):
            call(name)

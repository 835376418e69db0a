"""create_table, table, tables, drop_table."""

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, Constant, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import TableExistsError, TableNotFoundError
from tests.conformance.cases import assert_same, config, each, ones, raising, refused, unchanged


def test_default_seed_is_the_names(open_twin):
    twin = open_twin()
    first, second = (twin.create_table(name, **config()) for name in ("v", "w"))
    assert first.seed == 16735848030510122220
    assert not np.array_equal(first.lookup([1]), second.lookup([1]))


def test_created_again_is_the_same_table_as_it_is(open_table):
    twin, table = open_table()
    twin.on("a", "update", [1], ones(1))
    with pytest.warns(UserWarning, match=r"'a' .* keeps its learning rate 0\.1; .* 0\.7, .* no"):
        again = twin.create_table("a", **config(optimizer=Sgd(0.7)))  # the rate is no identity
    assert (again.t, again.learning_rate, again.digest()) == (1, 0.1, table.digest())


def test_created_again_with_the_default_parameters_spelled_out_is_the_same(open_twin):
    twin = open_twin(a=config(optimizer=Adam(0.1)))
    spelled = Adam(np.float64(0.1), beta1=0.9, beta2=0.999, epsilon=1e-8)
    twin.create_table("a", **config(optimizer=spelled, dim=np.int64(4), rows=np.int64(1000)))


def test_other_identity_is_refused(open_twin):
    twin = open_twin(a=config(optimizer=Adagrad(0.1)))
    for other, found in each(
        [
            ({"dim": 8}, "with dim 4 where 8 was asked for;"),
            ({"dim": 8, "seed": 1}, "with dim 4 where 8 was asked for, seed "),
            ({"seed": 1}, " where 1 was asked for;"),
            ({"initializer": Uniform(-0.1, 0.2)}, "with initializer high 0.1 where 0.2 was asked"),
            ({"initializer": Constant(0.1)}, "initializer uniform where constant was asked for;"),
            ({"optimizer": Sgd(0.1)}, "with optimizer adagrad where sgd was asked for;"),
            ({"optimizer": RowWiseAdagrad(0.1)}, "adagrad where rowwise_adagrad was asked for;"),
            ({"optimizer": Adagrad(0.1, epsilon=1e-7)}, "epsilon 1e-08 where 1e-07 was asked for;"),
            (
                {"optimizer": Adagrad(0.1, initial_accumulator=1.0)},
                "with optimizer initial_accumulator 0.0 where 1.0 was asked for;",
            ),
            ({"optimizer": Adagrad(0.1, weight_decay=0.1)}, "weight_decay 0.0 where 0.1 was"),
        ]
    ):
        with refused(twin.store, TableExistsError, "table 'a' exists with", found, "drop_table"):
            twin.store.create_table("a", **config(optimizer=Adagrad(0.1)) | other)


@pytest.mark.needs("plain_keys")
def test_more_rows_are_refused_and_grow_is_named(open_twin):
    twin = open_twin(a=config())
    parts = ("table 'a' exists with 1000 rows", "ask for 1000, or store.table('a').grow(2000)")
    with refused(twin.store, TableExistsError, *parts):
        twin.store.create_table("a", **config(rows=2000))


@pytest.mark.needs("plain_keys")
def test_less_rows_are_refused_and_no_hint_is_to_shrink(open_twin):
    twin = open_twin(a=config())
    with unchanged(twin.store), pytest.raises(TableExistsError, match="1000 rows where 999") as it:
        twin.store.create_table("a", **config(rows=999))
    assert str(it.value).endswith("ask for 1000")


@pytest.mark.needs("plain_keys")
def test_rows_of_today_are_those_after_growing(open_twin):
    twin = open_twin(a=config())
    twin.on("a", "grow", 2000)
    twin.create_table("a", **config(rows=2000))
    with refused(twin.store, TableExistsError, "2000 rows"):
        twin.store.create_table("a", **config(rows=1000))


def test_names_are_listed_in_order(open_twin):
    twin = open_twin()
    for name in ("b", "a/b", "a", "a.b", "...", "C1", "0"):
        twin.create_table(name, **config())
    assert twin.store.tables() == ["...", "0", "C1", "a", "a.b", "a/b", "b"]


def test_names_that_differ_by_case_are_two_tables(open_twin):
    twin = open_twin(userId=config(), userid=config())
    twin.on("userId", "update", [1], ones(1))
    assert (twin.store.table("userId").t, twin.store.table("userid").t) == (1, 0)
    twin.reopen()
    twin.drop_table("userid")
    assert twin.store.tables() == ["userId"]


def test_longest_name_opens_again(open_twin):
    twin = open_twin()
    name = "/".join(["x" * 63] * 4)
    assert len(name) == 255
    twin.create_table(name, **config())
    twin.on(name, "update", [1], ones(1))
    twin.reopen()


def test_dropped_table_is_gone_and_starts_anew(open_table):
    twin, table = open_table()
    fresh = table.lookup([1, 2])
    twin.on("a", "update", [1, 2], ones(2))
    twin.drop_table("a")
    assert twin.store.tables() == []
    with refused(twin.store, TableNotFoundError, "'a'"):
        twin.store.table("a")
    again = twin.create_table("a", **config())
    assert again.t == 0
    assert_same(again.lookup([1, 2]), fresh)


def test_unknown_table_is_named_with_those_there_are(open_twin):
    store = open_twin(a=config()).store
    with unchanged(store):
        for name in each(["b", "A", "", None, 7, b"a", ["a"]]):
            is_text = isinstance(name, str)
            there_are = "list the tables" if is_text else "the name of a table is text"
            for call in (
                store.table,
                store.drop_table,
                lambda n: store.lookup({tuple(n) if isinstance(n, list) else n: [1]}),
            ):
                with raising(TableNotFoundError, there_are):
                    call(name)

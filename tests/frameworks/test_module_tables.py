"""What a module makes of its tables: new ones, and those that a store has already."""

import re
import warnings

import pytest

from embstore import Adagrad, Sgd, TableExistsError, Uniform
from embstore.handles.store import Store
from embstore_client.frameworks.tables import Bag, Ids, default_initializer


def ids(rows: int, **given: object) -> Ids:
    options = {"dim": 4, "features": ["f"], "optimizer": Adagrad(0.1)} | given
    return Ids("items", rows=rows, **options)  # type: ignore[arg-type]


def test_a_table_that_has_grown_is_attached_without_its_initializer(store: Store) -> None:
    ids(50).create(store)
    store.table("items").grow(80)
    ids(80).create(store)
    assert store.table("items").initializer == default_initializer(50)


def test_a_table_of_another_initializer_is_attached_unless_one_is_asked_for(store: Store) -> None:
    ids(50, initializer=Uniform(-0.5, 0.5)).create(store)
    ids(50).create(store)
    with pytest.raises(TableExistsError, match=r"initializer high 0\.5 where 0\.25 was asked"):
        ids(50, initializer=Uniform(-0.5, 0.25)).create(store)


def test_what_differs_is_named_and_nothing_else(store: Store) -> None:
    ids(50).create(store)
    store.table("items").grow(80)
    with pytest.raises(TableExistsError) as refused:
        ids(80, optimizer=Sgd(0.1)).create(store)
    assert "'items' exists with optimizer adagrad where sgd was asked for; " in str(refused.value)


def test_more_rows_are_there_when_the_hint_is_followed(store: Store) -> None:
    ids(50).create(store)
    with pytest.raises(TableExistsError) as refused:
        ids(80).create(store)
    hint = re.search(r"store\.table\('items'\)\.grow\(\d+\)", str(refused.value))
    assert hint is not None
    eval(hint[0], {"store": store})
    ids(80).create(store)


def test_less_rows_than_there_are_are_refused_with_how_many_to_ask_for(store: Store) -> None:
    ids(80).create(store)
    with pytest.raises(TableExistsError, match=r"80 rows where 50 .*; ask for 80$"):
        ids(50).create(store)
    ids(80).create(store)


def test_a_learning_rate_is_the_one_of_the_warning_when_its_hint_is_followed(store: Store) -> None:
    ids(50).create(store)
    with pytest.warns(UserWarning, match=r"keeps its learning rate 0\.1; .* 0\.5") as warned:
        ids(50, optimizer=Adagrad(0.5)).create(store)
    hint = re.search(r"store\.table\('items'\)\.learning_rate = \S+", str(warned[0].message))
    assert hint is not None
    exec(hint[0], {"store": store})
    assert store.table("items").learning_rate == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids(50, optimizer=Adagrad(0.5)).create(store)


@pytest.mark.parametrize(
    ("rows", "bound"), [(0, 1.0), (4, 0.5), (1 << 20, 2**-10), (1 << 40, 2**-10), (None, 2**-10)]
)
def test_the_default_initializer_has_a_lower_bound(
    store: Store, rows: int | None, bound: float
) -> None:
    Bag("b", dim=2, rows=rows, features=["f"], optimizer=Sgd(0.1)).create(store)
    assert store.table("b").initializer == Uniform(-bound, bound)

"""Bags of several tables in one call: one lookup, and one update of all or of none."""

import numpy as np
import pytest

from embstore.config import Adam
from embstore.errors import InvalidArgumentError, TableNotFoundError
from tests.conformance.cases import assert_same, config, generator, normal, refused
from tests.conformance.traces import cut_into_bags, values
from tests.rules import spread_bags

TABLES = {
    "a": config(dim=4, rows=300),
    "b": config(dim=4, rows=900, optimizer=Adam(0.01)),  # of the layout of none
    "c": config(dim=7, rows=300),
}


@pytest.fixture
def twin(open_twin):
    return open_twin(**TABLES)


def bags_of(rng, *names, count=80):
    """Return keys, repeated, and offsets by table, with empty bags."""
    return {
        name: (rng.integers(0, TABLES[name]["rows"], count), cut_into_bags(rng, count))
        for name in names
    }


def gradients_of(rng, bags):
    return {n: normal(rng, len(o) - 1, TABLES[n]["dim"]) for n, (_, o) in bags.items()}


@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
def test_one_call_does_what_the_reference_does(twin, mode):
    rng, pooling = generator(651), "mean" if mode == "mean" else "sum"
    for step in range(4):
        bags = bags_of(rng, *list("abc")[: 3 - step % 2])
        weights = {"b": values(rng, 80)} if mode == "weighted" else None
        of = {name: (weights or {}).get(name) for name in bags}
        found = twin.store.lookup_pooled(bags, pooling, weights)
        assert list(found) == list(bags)
        for name, (keys, offsets) in bags.items():
            table = twin.reference.table(name)
            assert_same(found[name], table.lookup_pooled(keys, offsets, pooling, of[name]))
        gradients = gradients_of(rng, bags)
        options = {"learning_rate": 0.25, "gradient_scale": 0.5} if step else {}
        done = twin.store.update_pooled(bags, gradients, pooling, weights, **options)
        shares = {
            name: (keys, spread_bags(gradients[name], offsets, pooling, of[name]))
            for name, (keys, offsets) in bags.items()
        }
        t = twin.reference.update(shares, **options)
        assert (done.command, done.t) == (twin.reference.command_number, t)
    twin.check()


def test_some_rows_go_where_they_are_wanted(twin):
    bags = bags_of(generator(652), "a", "c")
    out = np.full((len(bags["c"][1]) - 1, 7), np.nan, np.float32)
    found = twin.store.lookup_pooled(bags, out={"c": out})
    assert found["c"] is out
    for name, (keys, offsets) in bags.items():
        assert_same(found[name], twin.reference.table(name).lookup_pooled(keys, offsets, "sum"))


def test_no_tables(twin):
    assert twin.store.lookup_pooled({}) == {}
    twin.reference.command_number = twin.store.update_pooled({}, {}).command


@pytest.mark.needs("plain_keys")
def test_one_wrong_table_is_none_changed(twin):
    store, rng = twin.store, generator(653)
    bags = bags_of(rng, "a", "b")
    gradients = gradients_of(rng, bags)
    wrong = [
        (TableNotFoundError, bags | {"d": bags["a"]}, gradients | {"d": gradients["a"]}, "'d'"),
        (InvalidArgumentError, bags, gradients | {"b": gradients["b"][1:]}, "'b'"),
        (InvalidArgumentError, bags, {"a": gradients["a"]}, "gradients of the tables"),
        (InvalidArgumentError, bags, gradients | {"c": gradients["a"]}, "gradients of the tables"),
        (InvalidArgumentError, bags | {"b": ([900], [0, 1])}, gradients, "'b'"),
        (InvalidArgumentError, bags | {"b": [1, 2, 3]}, gradients, "'b'"),
        (InvalidArgumentError, [1], gradients, "bags"),
    ]
    for error, given, sent, part in wrong:
        with refused(store, error, part):
            store.update_pooled(given, sent)
    infinite = {name: of.copy() for name, of in gradients.items()}
    infinite["b"][np.flatnonzero(np.diff(bags["b"][1]))[0]] = np.inf
    with refused(store, InvalidArgumentError, "'b'"):
        store.update_pooled(bags, infinite)
    with refused(store, InvalidArgumentError, "weights"):
        store.lookup_pooled(bags, weights={"c": np.ones(80, np.float32)})
    with refused(store, InvalidArgumentError, "out"):
        store.lookup_pooled(bags, out={"c": np.ones((9, 7), np.float32)})


@pytest.mark.needs("plain_keys")
def test_a_refused_lookup_writes_no_rows_out(twin):
    out = np.full((1, 4), 7, np.float32)
    with refused(twin.store, InvalidArgumentError, "'c'", "300"):
        twin.store.lookup_pooled({"a": ([1], [0, 1]), "c": ([300], [0, 1])}, out={"a": out})
    assert (out == 7).all()

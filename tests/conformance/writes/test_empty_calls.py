"""Calls of no keys, of one key, and of one key many times, through every verb.

Source: "empty batch, single key", recsys-examples PRs 271, 342, 349.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from tests.conformance.cases import OPTIMIZERS, assert_same, config, each, generator, normal, ones

DIMS = {"a": 6, "b": 6, "c": 3}
EMPTY = {
    "list": [],
    "int64": np.empty(0, np.int64),
    "int32": np.empty(0, np.int32),
    "float": np.empty(0),
    "a part of nothing": np.arange(10)[5:5],
}


@pytest.fixture
def twin(open_twin):
    """Two tables of one layout and one of another, a, b and c, for each optimizer."""
    twin = open_twin()
    for (kind, optimizer), (name, dim) in product(OPTIMIZERS.items(), DIMS.items()):
        twin.create_table(f"{kind}/{name}", **config(dim=dim, optimizer=optimizer))
    return twin


def every_write(twin, kind, keys, rng):
    """Do every writing verb with these keys; return by how much t has grown."""
    a, b, c = (f"{kind}/{name}" for name in "abc")
    count, width = len(keys), twin.reference.table(a).config.state_dim
    rows = normal(rng, count, 6)
    twin.on(a, "update", keys, rows)
    for mode in ("sum", "mean"):
        twin.on(a, "update_pooled", keys, [0, 0, count], normal(rng, 2, 6), mode)
    weights = normal(rng, count)
    twin.on(a, "update_pooled", keys, [0, count], normal(rng, 1, 6), "sum", weights)
    twin.on(a, "assign", keys, rows)
    twin.on(a, "put_rows", keys, rows, normal(rng, count, width), 1)
    twin.update({a: (keys, rows), b: (keys, rows), c: (keys, normal(rng, count, 3))})
    twin.update_ranks([{a: (keys, rows)}, {b: (keys, rows), a: (keys, rows)}])
    return 7


def every_read(twin, kind, keys):
    a, b, c = (f"{kind}/{name}" for name in "abc")
    table, wanted = twin.store.table(a), twin.reference.table(a)
    count = len(keys)
    for admit in (True, False):
        assert_same(table.lookup(keys, admit=admit), wanted.lookup(keys))
        found = twin.store.lookup({c: keys, a: keys, b: []}, admit=admit)
        assert_same(found[a], wanted.lookup(keys))
        assert found[b].shape == (0, 6)
        for mode in ("sum", "mean"):
            bags = [0, 0, count, count]
            found = table.lookup_pooled(keys, bags, mode, admit=admit)
            assert_same(found, wanted.lookup_pooled(keys, bags, mode))
    for found, expected in zip(table.read_rows(keys), wanted.read_rows(keys), strict=True):
        assert_same(found, expected)


def test_no_keys(twin):
    before, grown = twin.store.stats()["cache"], Counter()
    for times, keys in enumerate(each(EMPTY.values()), 1):
        for kind in each(OPTIMIZERS):
            grown[kind] += every_write(twin, kind, keys, generator(191))
            every_read(twin, kind, keys)
            assert twin.store.table(f"{kind}/a").t == grown[kind]
            assert twin.store.table(f"{kind}/b").t == 2 * times
            assert twin.reference.table(f"{kind}/a").written == set()
        assert twin.store.stats()["cache"] == before
    twin.reopen()
    for kind in OPTIMIZERS:
        assert twin.store.table(f"{kind}/a").t == grown[kind]


def test_one_key_once_and_many_times(twin):
    for kind, keys in each(product(OPTIMIZERS, ([7], [8] * 131))):
        every_write(twin, kind, keys, generator(192))
        every_read(twin, kind, keys)
    twin.reopen()
    for kind, keys in each(product(OPTIMIZERS, ([7], [8] * 131))):
        every_read(twin, kind, keys)


def test_commit_of_nothing_but_counts(twin):
    nothing, names = ([], np.empty((0, 6), np.float32)), [f"{kind}/a" for kind in OPTIMIZERS]
    for name in names:
        twin.on(name, "update", *nothing)
    twin.checkpoint("c")
    for name in names:
        twin.on(name, "update", *nothing)
    twin.restore("c")
    for name in names:
        assert twin.store.table(name).t == 1
        twin.on(name, "update", [1], ones(1, 6))

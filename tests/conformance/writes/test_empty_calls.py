"""Calls of no keys, of one key, and of one key many times, through every verb.

Source: "empty batch, single key", recsys-examples PRs 271, 342, 349.
"""

import numpy as np
import pytest

from tests.conformance.cases import OPTIMIZERS, assert_same, config, each, generator, normal, ones

EMPTY = {
    "list": [],
    "int64": np.empty(0, np.int64),
    "int32": np.empty(0, np.int32),
    "float": np.empty(0),
    "a part of nothing": np.arange(10)[5:5],
}


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def twin(request, open_twin):
    twin = open_twin()
    for name, dim in (("a", 6), ("b", 6), ("c", 3)):
        twin.create_table(name, **config(dim=dim, optimizer=request.param))
    return twin


def every_write(twin, keys, rng):
    """Do every writing verb with these keys; return by how much t has grown."""
    count, width = len(keys), twin.reference.table("a").config.state_dim
    rows = normal(rng, count, 6)
    twin.on("a", "update", keys, rows)
    for mode in ("sum", "mean"):
        twin.on("a", "update_pooled", keys, [0, 0, count], normal(rng, 2, 6), mode)
    weights = normal(rng, count)
    twin.on("a", "update_pooled", keys, [0, count], normal(rng, 1, 6), "sum", weights)
    twin.on("a", "assign", keys, rows)
    twin.on("a", "put_rows", keys, rows, normal(rng, count, width), 1)
    twin.update({"a": (keys, rows), "b": (keys, rows), "c": (keys, normal(rng, count, 3))})
    twin.update_ranks([{"a": (keys, rows)}, {"b": (keys, rows), "a": (keys, rows)}])
    return 7


def every_read(twin, keys):
    table, wanted = twin.store.table("a"), twin.reference.table("a")
    count = len(keys)
    for admit in (True, False):
        assert_same(table.lookup(keys, admit=admit), wanted.lookup(keys))
        found = twin.store.lookup({"c": keys, "a": keys, "b": []}, admit=admit)
        assert_same(found["a"], wanted.lookup(keys))
        assert found["b"].shape == (0, 6)
        for mode in ("sum", "mean"):
            bags = [0, 0, count, count]
            found = table.lookup_pooled(keys, bags, mode, admit=admit)
            assert_same(found, wanted.lookup_pooled(keys, bags, mode))
    for found, expected in zip(table.read_rows(keys), wanted.read_rows(keys), strict=True):
        assert_same(found, expected)


def test_no_keys(twin):
    before, grown = twin.store.stats()["cache"], 0
    for times, keys in enumerate(each(EMPTY.values()), 1):
        grown += every_write(twin, keys, generator(191))
        every_read(twin, keys)
        assert twin.store.table("a").t == grown
        assert twin.store.table("b").t == 2 * times
        assert twin.reference.table("a").written == set()
        assert twin.store.stats()["cache"] == before
    twin.reopen()
    assert twin.store.table("a").t == grown


@pytest.mark.parametrize("keys", [[7], [7] * 131], ids=["once", "many times"])
def test_one_key(twin, keys):
    every_write(twin, keys, generator(192))
    every_read(twin, keys)
    twin.reopen()
    every_read(twin, keys)


def test_commit_of_nothing_but_counts(twin):
    twin.on("a", "update", [], np.empty((0, 6), np.float32))
    twin.checkpoint("c")
    twin.on("a", "update", [], np.empty((0, 6), np.float32))
    twin.restore("c")
    assert twin.store.table("a").t == 1
    twin.on("a", "update", [1], ones(1, 6))

"""Bags of a run over a server: their rows come early, while the step before computes."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

import embstore
from embstore import Adam, Uniform
from embstore_proto.narrow import rounded, widened
from tests.reference import ReferenceStore
from tests.service.faults.served import until
from tests.serving import Server, patient

ROWS, DIM, STEPS = 5000, 6, 6
TABLES = "a", "b"


@pytest.fixture(params=["grpc", "shared"])
def store(request: pytest.FixtureRequest, server: Server) -> Iterator[embstore.Store]:
    address = server.address if request.param == "grpc" else f"unix:{server.socket}"
    with patient(address) as store:
        yield store


@pytest.fixture
def reference(store: embstore.Store) -> ReferenceStore:
    reference = ReferenceStore()
    for name in TABLES:
        how: dict[str, Any] = {"optimizer": Adam(0.1), "initializer": Uniform(-1, 1), "seed": 3}
        store.create_table(name, dim=DIM, rows=ROWS, **how)
        reference.create_table(name, dim=DIM, rows=ROWS, **how)
    return reference


def batch(rng: np.random.Generator, length: int) -> dict[str, tuple[Any, Any]]:
    """Return ids and offsets of each table, with empty bags and repeated ids."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 2 * length, 64))])
    return {name: (rng.zipf(1.2, offsets[-1]) % ROWS, offsets) for name in TABLES}


def early_rows(store: embstore.Store) -> int:
    return int(store.stats()["sessions"]["open"][0]["early_rows"])


def trained(
    store: embstore.Store, reference: ReferenceStore, length: int, *, mode: Any, is_early: bool
) -> None:
    """Train by bags; after the first steps wait, before each update, for early rows."""
    rng = np.random.default_rng(11)
    batches = [batch(rng, length) for _ in range(STEPS)]
    keys = [{name: ids for name, (ids, _) in given.items()} for given in batches]
    with store.session(TABLES, lookahead=STEPS) as run:
        for step, given in zip(run.steps(keys, keys=lambda k: k), batches, strict=True):
            weights = {"a": rng.random(len(given["a"][0]), np.float32)} if mode == "sum" else None
            before = early_rows(store)
            pooled = step.lookup_pooled({n: o for n, (_, o) in given.items()}, mode, weights)
            gradients = {}
            for name, (ids, offsets) in given.items():
                of_ids = (weights or {}).get(name)
                table = reference.table(name)
                expected = table.lookup_pooled(ids, offsets, mode, of_ids)
                np.testing.assert_array_equal(pooled[name], expected)
                gradients[name] = rng.random(expected.shape, np.float32)
            if is_early and step.number < STEPS:
                until(lambda before=before: early_rows(store) > before)
            step.update_pooled(gradients)
            for name, (ids, offsets) in given.items():
                of_ids = (weights or {}).get(name)
                reference.table(name).update_pooled(ids, offsets, gradients[name], mode, of_ids)
        if not is_early:
            assert early_rows(store) == 0
    for name in TABLES:
        assert store.table(name).digest() == reference.table(name).digest()


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_rows_of_short_bags_come_early(store, reference, mode):
    trained(store, reference, 2, mode=mode, is_early=True)


def test_long_bags_are_pooled_by_the_server(store, reference):
    trained(store, reference, 40, mode="sum", is_early=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_comes_behind_pooling(store, reference, dtype):
    """However early rows are there: a server rounds what it has pooled."""
    info = cast(Any, store.executor).connected_by
    keys = [{"a": np.arange(100) + 7 * n} for n in range(4)]
    bags = {"a": np.arange(0, 101, 2)}
    with patient(info["address"], wire_dtype=dtype) as narrow:
        with narrow.session(["a"], lookahead=4) as run:
            for step in run.steps(keys, keys=lambda k: k):
                exact = reference.table("a").lookup_pooled(step.batch["a"], bags["a"], "sum")
                expected = widened(rounded(exact, dtype))
                np.testing.assert_array_equal(step.lookup_pooled(bags)["a"], expected)
                step.lookup()  # which sends for the next step's rows
                np.testing.assert_array_equal(step.lookup_pooled(bags)["a"], expected)
                step.release()

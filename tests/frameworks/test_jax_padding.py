"""Rows padded to few sizes: functions are compiled for those, however batches differ."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

from embstore import Sgd, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Ids, pool  # noqa: E402
from embstore_client.jax.padding import Sizes, size_for  # noqa: E402
from tests.frameworks.on_jax import loss_of  # noqa: E402

BAGS, TABLES, BATCHES = 8, 5, 40


def batch_of(rng: np.random.Generator) -> dict[str, Any]:
    """Return features of as many bags each, but of 0 to 40 ids a bag."""
    lengths = rng.integers(0, 40, (TABLES, BAGS)) * rng.integers(0, 2, (TABLES, 1))
    features: dict[str, Any] = {
        f"x{n}": (rng.integers(0, 500, of.sum()), np.append(0, np.cumsum(of[:-1])))
        for n, of in enumerate(lengths)
    }
    features["i"] = np.where(rng.integers(0, 2, (BAGS, 3)), rng.integers(0, 500, (BAGS, 3)), -1)
    return features


def embeddings_of(store: Store) -> Embeddings:
    options = {"dim": 2, "rows": 500, "optimizer": Sgd(0.1), "initializer": Uniform(-1, 1)}
    tables = [Bag(f"t{n}", features=[f"x{n}"], **options) for n in range(TABLES)]
    return Embeddings(store, [*tables, Ids("i", features=["i"], **options)])


def test_sizes_are_few_and_waste_a_third_at_most() -> None:
    sizes = sorted({size_for(count) for count in range(5000)})
    assert sizes[:8] == [8, 12, 16, 24, 32, 48, 64, 96]
    assert all(after <= 1.5 * before for before, after in pairwise(sizes))
    for count in range(9, 5000):
        assert count <= size_for(count) <= 1.5 * (count - 1) + 1


def test_a_size_has_room_for_a_quarter_more_and_is_kept() -> None:
    sizes = Sizes()
    found = [sizes.of_table("t", count, rows=2000) for count in (40, 60, 10, 63, 64, 1900, 2000)]
    assert found == [64, 64, 64, 64, 96, 2048, 2048]
    assert [sizes.of_feature("t", count) for count in (0, 8, 9)] == [8, 8, 12]


def test_activations_of_as_many_bags_are_compiled_for_once(embedded: Store) -> None:
    rng, embeddings, compiled = np.random.default_rng(1), embeddings_of(embedded), []

    @jax.jit
    def train(activations: Any) -> Any:
        compiled.append(1)
        return jax.grad(lambda of: loss_of(of, tuple(of)))(activations)

    for step in embeddings.ahead([batch_of(rng) for _ in range(BATCHES)], features=lambda b: b):
        step.update(train(step.activations))
    assert len(compiled) == train._cache_size() == 1


def test_rows_are_compiled_for_where_a_table_outgrows_its_size_alone(embedded: Store) -> None:
    rng, embeddings, compiled = np.random.default_rng(2), embeddings_of(embedded), []

    @jax.jit
    def train(rows: Any, places: Any) -> Any:
        compiled.append(1)
        return jax.grad(lambda of: loss_of(pool(of, places), tuple(places)))(rows)

    shapes: list[Any] = []
    for step in embeddings.ahead([batch_of(rng) for _ in range(BATCHES)], features=lambda b: b):
        step.update_unique(train(step.rows, step.places))
        shapes.append([leaf.shape for leaf in jax.tree.leaves((step.rows, step.places))])
    grown = sum(before != after for before, after in pairwise(shapes))
    assert len(compiled) == train._cache_size() == grown + 1
    assert all(
        after >= before
        for old, new in pairwise(shapes)
        for before, after in zip(old, new, strict=True)
    )
    assert len(compiled) <= BATCHES // 4
    assert embedded.table("t0").t == BATCHES

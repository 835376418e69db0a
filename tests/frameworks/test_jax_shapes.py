"""Ids, weights and gradients in the shapes and dtypes of JAX and NumPy; and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import InvalidArgumentError, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Ids, pool  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin  # noqa: E402
from tests.frameworks.on_jax import ROWS, batch_of, embeddings_of, features_of, gradients_of  # noqa: E402


def test_padding_is_no_id(embedded: Store) -> None:
    """An id of -1: no row of a bag, zeros where a row for each id is wanted, and no gradient."""
    embeddings = embeddings_of(embedded)
    twin = Twin(embeddings)
    given = {
        "x": np.array([[1, -1, 2], [-1, -1, -1]]),
        "y": np.array([-1, 5, 5]),
        "z": (np.array([3, -1, -1, 4]), np.array([0, 1, 3])),
        "i": np.array([[-1, 7], [7, -1]], np.int32),
    }
    plain = {
        "x": (np.array([1, 2]), np.array([0, 2, 2]), None),
        "y": (np.array([5, 5]), np.array([0, 0, 1, 2]), None),
        "z": (np.array([3, 4]), np.array([0, 1, 1, 2]), None),
        "i": (np.array([7, 7]), np.array([0, 0, 1, 2, 2]), None),
    }
    step = embeddings.lookup(given)
    pooled = pool(step.rows, step.places)
    for feature, (ids, offsets, _) in plain.items():
        (table,) = (t for name, t in features_of(embeddings) if name == feature)
        mode = getattr(table, "mode", "sum")
        wanted = embedded.table(table.name).lookup_pooled(ids, offsets, mode=mode)
        found = np.asarray(step.activations[feature])
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
        np.testing.assert_allclose(pooled[feature], found, rtol=1e-6)
    gradients = gradients_of(step.activations)
    twin.step([Forward(plain, {f: g.reshape(-1, g.shape[-1]) for f, g in gradients.items()})])
    step.update(gradients)
    twin.assert_same()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_ids_are_int32_or_int64_of_numpy_or_jax(
    embedded: Store, dtype: Any, as_array: Callable[..., Any]
) -> None:
    embeddings = Embeddings(
        embedded, [Ids("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))]
    )
    ids = np.arange(12, dtype=dtype).reshape(3, 4)
    wanted = embedded.table("t").lookup(ids.T.reshape(-1)).reshape(4, 3, 4)
    given = ids.T if as_array is np.asarray else as_array(ids).T  # not contiguous
    np.testing.assert_array_equal(embeddings.lookup({"x": given}).activations["x"], wanted)


def test_one_sample_and_none(store: Store) -> None:
    embeddings = Embeddings(
        store,
        [
            Bag("b", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1)),
            Ids("i", dim=3, rows=ROWS, features=["y"], optimizer=Sgd(1)),
        ],
    )
    for count in (1, 0):
        ids = np.zeros((count, 2), np.int64)
        step = embeddings.lookup({"x": ids, "y": ids})
        assert step.activations["x"].shape == (count, 4)
        assert step.activations["y"].shape == (count, 2, 3)
        assert pool(step.rows, step.places)["x"].shape == (count, 4)
        done = step.update(jax.tree.map(jnp.ones_like, step.activations))
        assert done is not None
    assert store.table("b").t == 2


def test_gradients_may_be_bfloat16_and_not_contiguous(embedded: Store) -> None:
    embeddings = Embeddings(
        embedded, [Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))]
    )
    twin = Twin(embeddings)
    ids = np.array([[1], [1], [2]])
    given = {"x": (ids.reshape(-1), np.arange(4), None)}
    for gradient in (
        jnp.full((3, 4), 0.3, jnp.bfloat16),
        np.arange(12, dtype=np.float32).reshape(4, 3).T,
    ):
        twin.step([Forward(given, {"x": np.asarray(gradient, np.float32)})])
        embeddings.lookup({"x": ids}).update({"x": gradient})
    twin.assert_same()


# What is wrong


def test_what_is_wrong_is_said_by_name_and_changes_nothing(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(9), embeddings_of(embedded)
    given, _ = batch_of(rng)
    step = embeddings.lookup(given)
    gradients = gradients_of(step.activations)
    command = embedded.command
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: embeddings.lookup([1, 2]), "mapping"),
        (lambda: embeddings.lookup({"x": given["x"]}), "missing are"),
        (lambda: embeddings.lookup(given | {"x": np.ones((2, 2))}), "'x'.*int32 or int64"),
        (lambda: embeddings.lookup(given | {"x": np.ones((2, 2, 2), int)}), r"\(bags, length\)"),
        (lambda: embeddings.lookup(given | {"x": (np.ones(2, int), np.array([1]))}), "rise from 0"),
        (lambda: embeddings.lookup(given | {"x": (np.ones(2, int), np.array([0, 3]))}), "rise"),
        (
            lambda: embeddings.lookup(
                given | {"x": (np.ones(2, int), None, np.ones(2, np.float32))}
            ),
            "no offsets",
        ),
        (lambda: embeddings.lookup(given | {"i": (np.ones(2, int), None)}), "expected ids, or"),
        (
            lambda: embeddings.lookup(
                given | {"x": (np.ones((2, 2), int), None, np.ones(4, np.float32))}
            ),
            r"weights of shape \(2, 2\)",
        ),
        (lambda: embeddings.lookup(given | {"i": np.array([ROWS])}), "table 'c'"),
        (lambda: step.update({"w": gradients["x"]}), r"features .* found \['w'\]"),
        (lambda: step.update({"x": gradients["x"][1:]}), "'x': expected float gradients of shape"),
        (lambda: step.update({"x": np.ones((6, 4), int)}), "float gradients"),
        (lambda: step.update_unique({"a": np.ones((1, 4), np.float32)}), "'a': expected float"),
        (lambda: step.update_unique({"x": gradients["x"]}), "tables"),
        (lambda: Embeddings(embedded, []), "at least one table"),
    ]
    for call, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    assert embedded.command == command

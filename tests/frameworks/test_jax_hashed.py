"""Tables of JAX that hash ids train the rows that hash_ids names, whatever ids come as."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import Adam, InvalidArgumentError, Uniform, hash_ids  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Ids  # noqa: E402
from tests.frameworks.tables import DIM, ROWS, rows_of  # noqa: E402

TABLE: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "seed": 7,
    "optimizer": Adam(0.1),
    "initializer": Uniform(-1, 1),
}
FEATURES: dict[str, Any] = {
    "x": pa.array(["a", None, "ü", "b"]),
    "y": ([5, "5", 2**64 - 2], np.array([0, 2]), np.array([0.5, 1, -1], np.float32)),
    "z": [["a", "b", ""], ["b", "c", "a"]],
}
FLAT: dict[str, Any] = FEATURES | {"y": FEATURES["y"][0]}


def embeddings_of(store: Any, name: str, **options: Any) -> Embeddings:
    pooled = Bag(name, features=["x", "y"], **TABLE, **options)
    return Embeddings(store, [pooled, Ids(name, features=["z"], **TABLE, **options)])


def keys_of(features: dict[str, Any]) -> dict[str, Any]:
    keys = {name: hash_ids(ids, feature="t", rows=ROWS) for name, ids in FLAT.items()}
    return {
        name: (keys[name], *ids[1:]) if isinstance(ids, tuple) else keys[name]
        for name, ids in features.items()
    }


def loss_of(activations: Any) -> Any:
    return sum(jnp.square(of).cumsum(0).sum() for of in activations.values())


def train(step: Any) -> None:
    step.update(jax.grad(loss_of)(step.activations))


def test_ids_of_any_kind(store):
    hashed, plain = embeddings_of(store, "t", ids="hash"), embeddings_of(store, "keys")
    train(hashed.lookup(FEATURES))
    train(plain.lookup(keys_of(FEATURES)))
    for step in hashed.ahead([FEATURES] * 2, features=lambda batch: batch):
        train(step)
    for step in plain.ahead([keys_of(FEATURES)] * 2, features=lambda batch: batch):
        train(step)
    assert rows_of(store, "t").tobytes() == rows_of(store, "keys").tobytes()
    assert store.table("t").t == 3


def test_integers_are_hashed_within_what_is_compiled(embedded):
    ids = np.array([[5, -7], [9, -1]], np.int32)
    found = []
    for name, given in (
        ("t", ids),
        ("keys", np.where(ids == -1, -1, hash_ids(ids, feature="t", rows=ROWS))),
    ):
        options = {"ids": "hash"} if name == "t" else {}
        embeddings = Embeddings(embedded, [Ids(name, features=["z"], **TABLE, **options)])

        @jax.jit
        def gradient(anchor, ids, embeddings=embeddings):
            def loss(anchor):
                rows = embeddings.callback({"z": ids}, anchor)["z"]
                return jnp.square(rows).cumsum(0).sum() + 0 * anchor

            return jax.grad(loss)(anchor)

        jax.block_until_ready(gradient(jnp.float32(0), jnp.asarray(given, jnp.int32)))
        embeddings.step()
        found.append(rows_of(embedded, name).tobytes())
    assert found[0] == found[1]


def test_ids_that_are_no_keys_are_refused_with_advice(embedded):
    embeddings = embeddings_of(embedded, "t")
    for ids in (["a"], np.array([2.0]), np.array([1], np.uint64)):
        with pytest.raises(InvalidArgumentError) as refused:
            embeddings.lookup({"x": ids, "y": ids, "z": ids})
        assert "embstore.hash_ids(" in str(refused.value) and 'ids="hash"' in str(refused.value)

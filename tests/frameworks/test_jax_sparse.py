"""Tables of sparse keys train to the bit as dense ones do, in and outside of compiled functions."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import InvalidArgumentError, hash_ids  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Ids, pool  # noqa: E402
from tests.frameworks.sparse import IDS, TABLE, TWIN, assert_same_rows, drawn, ids_of  # noqa: E402
from tests.frameworks.test_jax_hashed import loss_of, train  # noqa: E402


def embeddings_of(store: Any, name: str) -> Embeddings:
    options = TABLE if name == "t" else TWIN
    return Embeddings(
        store, [Bag(name, features=["x"], **options), Ids(name, features=["z"], **options)]
    )


def features_of(name: str, seed: int) -> dict[str, Any]:
    x, z = drawn(seed, 6, 5, padding=0.4), drawn(seed + 100, 7)
    return {"x": x, "z": z} if name == "twin" else {"x": ids_of(x), "z": ids_of(z)}


def test_ids_of_any_sign(store):
    for name in ("t", "twin"):
        embeddings = embeddings_of(store, name)
        train(embeddings.lookup(features_of(name, 1)))
        batches = [features_of(name, seed) for seed in (2, 3)]
        for step in embeddings.ahead(batches, features=lambda batch: batch):
            train(step)
    assert_same_rows(store, "t", "twin")


def test_rows_that_are_pooled_within_what_is_compiled(embedded):
    for name in ("t", "twin"):
        step = embeddings_of(embedded, name).lookup(features_of(name, 1))
        gradients = jax.jit(jax.grad(lambda rows, places: loss_of(pool(rows, places))))
        step.update_unique(gradients(step.rows, step.places))
    assert_same_rows(embedded, "t", "twin")


def test_unsigned_ids(embedded):
    train(
        Embeddings(embedded, [Ids("t", features=["z"], **TABLE)]).lookup({"z": IDS.view(np.uint64)})
    )
    twin = Embeddings(embedded, [Ids("twin", features=["z"], **TWIN)])
    train(twin.lookup({"z": np.arange(len(IDS))}))
    assert_same_rows(embedded, "t", "twin")


def test_hashes_are_keys_as_they_are(embedded):
    words = ["a", "b", "", "ü"]
    embeddings = Embeddings(embedded, [Ids("t", features=["z"], ids="hash", **TABLE)])
    train(embeddings.lookup({"z": words}))
    keys = hash_ids(words, feature="t")
    assert (keys < 0).any() and (embedded.table("t").lookup(keys) != 0.25).any(axis=1).all()


def gradient_of(embeddings: Embeddings) -> Any:
    @jax.jit
    def gradient(anchor: Any, ids: Any) -> Any:
        def loss(anchor: Any) -> Any:
            rows = embeddings.callback({"z": ids}, anchor)["z"]
            return jnp.square(rows).cumsum(0).sum() + 0 * anchor

        return jax.grad(loss)(anchor)

    return gradient


def test_ids_of_64_bits_within_what_is_compiled(embedded):
    places = drawn(4, 3, 5, padding=0.2)
    with jax.enable_x64(True):
        for name, options, ids in (("t", TABLE, ids_of(places)), ("twin", TWIN, places)):
            embeddings = Embeddings(embedded, [Ids(name, features=["z"], **options)])
            jax.block_until_ready(gradient_of(embeddings)(jnp.float32(0), jnp.asarray(ids)))
            embeddings.step()
    assert_same_rows(embedded, "t", "twin")


def test_ids_of_32_bits_within_what_is_compiled_are_refused(embedded):
    """JAX has cut them off before anybody here sees them."""
    embeddings = Embeddings(embedded, [Ids("t", features=["z"], **TABLE)])
    expected = "because table 't' has sparse keys, found int32; set jax_enable_x64"
    with pytest.raises(InvalidArgumentError, match=expected):
        gradient_of(embeddings)(jnp.float32(0), jnp.arange(3))

"""Lookups from within a compiled function, by ordered callbacks; their gradients, and `step`."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402
from jax.experimental import io_callback  # noqa: E402

from embstore import Adam, Constant, InvalidArgumentError, Sgd  # noqa: E402
from embstore.arithmetic.denormals import keeps_denormals  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Ids  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin  # noqa: E402
from tests.frameworks.on_jax import (  # noqa: E402
    ANCHOR,
    ROWS,
    batch_of,
    embeddings_of,
    fixed_batch,
    gradients_by,
    loss_of,
    wanted_of,
)
from tests.reference import ReferenceStore  # noqa: E402

DENORMAL = 1e-40


def test_shapes_are_those_of_lookups(embedded: Store) -> None:
    given, _ = batch_of(np.random.default_rng(2))
    given = {name: jax.tree.map(jnp.asarray, of) for name, of in given.items()}
    given["z"] = jnp.asarray([3, -1, 5])
    given["other"] = "not ours"
    embeddings = embeddings_of(embedded)
    wanted = embeddings.lookup(given).activations
    numbers = {name: of for name, of in given.items() if name != "other"}
    for found in (
        embeddings.callback(given, ANCHOR),
        jax.jit(lambda ids: embeddings.callback(ids, ANCHOR))(numbers),
    ):
        assert found.keys() == wanted.keys()
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_forwards_count_in_their_order(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(3), embeddings_of(embedded)
    twin, train = Twin(embeddings), gradients_by(embeddings)
    seen = []
    for scale in (1.0, -3.0, 0.5):
        given, twins = fixed_batch(rng)
        activations, _ = train(given, scale)
        seen.append(Forward(twins, wanted_of(activations, scale=scale)))
    twin.step(seen)
    embeddings.step()
    twin.assert_same()
    assert embedded.table("a").t == 1


def test_micro_batches_of_a_scan_are_one_update(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(4), embeddings_of(embedded)
    twin = Twin(embeddings)
    batches = [fixed_batch(rng) for _ in range(4)]
    stacked = jax.tree.map(lambda *of: jnp.stack(of), *[given for given, _ in batches])

    @jax.jit
    def train(ids: Any) -> Any:
        def loss(anchor: Any) -> Any:
            def add(total: Any, micro: Any) -> Any:
                return total + loss_of(embeddings.callback(micro, anchor)), None

            return jax.lax.scan(add, 0.0, ids)[0]

        return jax.grad(loss)(ANCHOR)

    looked_up = [embeddings.lookup(given).activations for given, _ in batches]
    train(stacked)
    forwards = zip(batches, looked_up, strict=True)
    twin.step([Forward(twins, wanted_of(found)) for (_, twins), found in forwards])
    embeddings.step()
    twin.assert_same()


def test_weights_are_of_the_sum_and_have_no_gradient(embedded: Store) -> None:
    table = Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Adam(0.1))
    embeddings = Embeddings(embedded, [table])
    twin = Twin(embeddings)
    ids, begins = np.array([1, 2, 1, 1], np.int32), np.array([0, 3], np.int32)
    weights = np.array([0.5, -2, 3, 1 / 3], np.float32)

    @jax.jit
    def train(weights: Any) -> Any:
        def loss(anchor: Any, weights: Any) -> Any:
            features = {"x": (ids, begins, weights)}
            return jnp.square(embeddings.callback(features, anchor)["x"]).sum()

        return jax.grad(loss, argnums=(0, 1))(ANCHOR, weights)

    pooled = embedded.table("t").lookup_pooled(ids, np.append(begins, 4), weights=weights)
    _, of_weights = train(weights)
    assert not of_weights.any()
    twin.step([Forward({"x": (ids, np.append(begins, 4), weights)}, {"x": 2 * pooled})])
    embeddings.step()
    twin.assert_same()


# Threads that flush denormals


def test_denormals_are_kept_in_callbacks(embedded: Store) -> None:
    """JAX flushes them in the threads of callbacks: sums there must not become zeros."""
    table = Bag(
        "t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1.0), initializer=Constant(DENORMAL)
    )
    embeddings = Embeddings(embedded, [table])
    ids = jnp.asarray([[1, 2, 1], [3, 3, 3]])
    flushed = []

    def look(values: Any) -> Any:
        flushed.append(not keeps_denormals())
        return values

    def found(ids: Any) -> Any:
        ids = io_callback(look, ids, ids, ordered=True)
        return embeddings.callback({"x": ids}, ANCHOR)["x"]

    pooled = np.asarray(jax.jit(found)(ids))
    assert flushed == [True]
    wanted = embedded.table("t").lookup_pooled(np.asarray(ids).reshape(-1), [0, 3, 6])
    np.testing.assert_array_equal(pooled.view(np.uint32), wanted.view(np.uint32))
    assert (pooled.view(np.uint32) != 0).all()


def test_an_update_from_a_callback_is_that_of_numpy(store: Store) -> None:
    options = {"dim": 4, "rows": ROWS, "optimizer": Sgd(1.0), "initializer": Constant(0.0)}
    table, reference = store.create_table("t", **options), ReferenceStore()
    reference.create_table("t", seed=table.config.seed, **options)
    keys = np.array([1, 2, 1, 1])
    gradients = np.full((4, 4), DENORMAL, np.float32)

    def update(_: Any) -> None:
        table.update(keys, gradients)

    jax.jit(lambda x: io_callback(update, None, x, ordered=True))(ANCHOR)
    jax.effects_barrier()
    reference.update({"t": (keys, gradients)})
    assert table.digest() == reference.table("t").digest()
    assert (table.lookup([1, 2]) != 0).all()


# What is wrong


def test_what_is_wrong_is_said_when_a_function_is_compiled(embedded: Store) -> None:
    embeddings = embeddings_of(embedded)
    given, _ = fixed_batch(np.random.default_rng(9))
    compiled = jax.jit(lambda ids: embeddings.callback(ids, ANCHOR))
    with pytest.raises(InvalidArgumentError, match="missing are"):
        compiled({"x": given["x"]})
    with pytest.raises(InvalidArgumentError, match=r"'x'.*int32 or int64"):
        compiled(given | {"x": jnp.ones((5, 3))})
    huge = Embeddings(
        embedded, [Ids("huge", dim=2, rows=2**31 + 1, features=["h"], optimizer=Sgd(1))]
    )
    with pytest.raises(InvalidArgumentError, match="jax_enable_x64"):
        jax.jit(lambda ids: huge.callback(ids, ANCHOR))({"h": jnp.asarray([1])})
    large = np.array([2**31], np.int64)
    wanted = huge.lookup({"h": large}).activations["h"]
    with jax.enable_x64(True):
        found = jax.jit(lambda ids: huge.callback(ids, jnp.zeros(())))({"h": jnp.asarray(large)})
    np.testing.assert_array_equal(found["h"], wanted)


def test_what_fails_in_a_callback_is_named(embedded: Store) -> None:
    embeddings = embeddings_of(embedded)
    rng = np.random.default_rng(10)
    (given, _), (other, _) = fixed_batch(rng), fixed_batch(rng)
    train = gradients_by(embeddings)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"table 'c'.*found 40"):
        jax.block_until_ready(train(given | {"i": jnp.full((5, 3), ROWS)}, 1.0))
    for _ in embeddings.ahead([given], features=lambda batch: batch):
        with pytest.raises(jax.errors.JaxRuntimeError, match="announced for step 1"):
            jax.block_until_ready(train(other, 1.0))
        embeddings.step()
    train(given, 1.0)
    assert embeddings.step() is not None

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
from tests.frameworks.on_jax import ROWS, batch_of, embeddings_of, loss_of  # noqa: E402
from tests.reference import ReferenceStore  # noqa: E402

ANCHOR = jnp.zeros(())
DENORMAL = 1e-40


def fixed_batch(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a batch whose arrays are of the same shapes each time, and as the twin has it."""
    ids = {feature: rng.zipf(1.3, (5, 3)) % ROWS for feature in "xyzi"}
    ends = np.arange(6) * 3
    twins: dict[str, Any] = {feature: (of.reshape(-1), ends, None) for feature, of in ids.items()}
    twins["i"] = (ids["i"].reshape(-1), None, None)
    return {feature: jnp.asarray(of, jnp.int32) for feature, of in ids.items()}, twins


def gradients_by(embeddings: Embeddings, features: str = "xyzi") -> Any:
    """Return a compiled function of ids: one loss, its gradients kept by callbacks."""

    @jax.jit
    def train(ids: Any, scale: Any) -> Any:
        def loss(parameters: Any) -> Any:
            activations = embeddings.callback(ids, parameters["anchor"])
            return parameters["scale"] * loss_of(activations, features), activations

        parameters = {"anchor": ANCHOR, "scale": scale}
        (_, activations), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        return activations, gradients

    return train


def wanted_of(activations: Any, features: str = "xyzi", scale: float = 1.0) -> dict[str, Any]:
    """Return the gradients of the same loss, of activations that were looked up."""
    compiled = jax.jit(jax.grad(lambda of: scale * loss_of(of, features)))
    return dict.fromkeys("xyzi") | compiled({name: activations[name] for name in features})


@pytest.mark.parametrize("is_ahead", [False, True])
def test_updates_are_those_of_numpy(store: Store, is_ahead: bool) -> None:
    rng, embeddings = np.random.default_rng(1), embeddings_of(store)
    twin, train = Twin(embeddings), gradients_by(embeddings)
    batches: Any = [fixed_batch(rng) for _ in range(8)]
    if is_ahead:
        loop = embeddings.ahead(batches, features=lambda batch: batch[0], lookahead=3)
        batches = (step.batch for step in loop)
    for given, twins in batches:
        activations, gradients = train(given, 1.0)
        assert gradients["anchor"] == 0
        twin.step([Forward(twins, wanted_of(activations))])
        embeddings.step()
    twin.assert_same()
    assert store.table("a").t == 8
    assert train._cache_size() == 1


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


def test_what_the_loss_does_not_use_is_not_updated(store: Store) -> None:
    rng, embeddings = np.random.default_rng(5), embeddings_of(store)
    twin, train = Twin(embeddings), gradients_by(embeddings, "z")
    given, twins = fixed_batch(rng)
    activations, _ = train(given, 1.0)
    twin.step([Forward(twins, wanted_of(activations, "z"))])
    embeddings.step()
    twin.assert_same()
    facts = store.table_facts()
    assert (facts["a"].t, facts["b"].t, facts["c"].t) == (0, 1, 0)


def test_without_differentiation_nothing_is_admitted_or_kept(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(6), embeddings_of(embedded)
    evaluate = jax.jit(lambda ids: loss_of(embeddings.callback(ids, ANCHOR)))
    given, _ = fixed_batch(rng)
    assert np.isfinite(evaluate(given))
    assert embedded.table("a").stats()["resident_rows"] == 0
    assert embeddings.step() is None
    gradients_by(embeddings)(given, 1.0)
    assert embedded.table("a").stats()["resident_rows"] > 0
    embeddings.zero_grad()
    assert embeddings.step() is None


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


def test_a_batch_without_a_backward_pass_is_released(embedded: Store) -> None:
    embeddings = Embeddings(
        embedded, [Ids("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(0.1))]
    )
    for _ in embeddings.ahead([{"x": np.array([[1]])}] * 3, features=lambda batch: batch):
        assert embeddings.step() is not None
    assert embeddings.last_step == 3
    assert embedded.table("t").t == 0


def test_gradients_that_were_not_sent_are_not_lost_in_silence(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(7), embeddings_of(embedded)
    train, batches = gradients_by(embeddings), [fixed_batch(rng) for _ in range(2)]
    with pytest.raises(InvalidArgumentError, match=r"step\(\)"):
        for step in embeddings.ahead(batches, features=lambda batch: batch[0]):
            train(step.batch[0], 1.0)
    assert embeddings.step() is None
    train(batches[0][0], 1.0)
    with pytest.raises(InvalidArgumentError, match=r"step\(\)"):
        embeddings.save("label")
    assert embedded.checkpoints() == []


def test_gradients_that_are_refused_are_kept(embedded: Store) -> None:
    embeddings = embeddings_of(embedded)
    given, _ = fixed_batch(np.random.default_rng(8))
    gradients_by(embeddings)(given, jnp.inf)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="finite"):
            embeddings.step()
    done = embeddings.step(on_nonfinite="skip")
    assert done is not None and done.skipped
    assert embeddings.step() is None


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

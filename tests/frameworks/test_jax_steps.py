"""What an update sends: to the bit what NumPy sends that is given the same gradients."""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import InvalidArgumentError, Sgd, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Step, pool  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin  # noqa: E402
from tests.frameworks.on_jax import (  # noqa: E402
    ROWS,
    batch_of,
    embeddings_of,
    features_of,
    gradients_of,
    loss_of,
    steps_of,
)
from tests.serving import Server, patient  # noqa: E402


@pytest.mark.parametrize("is_ahead", [False, True])
def test_updates_are_those_of_numpy(store: Store, is_ahead: bool) -> None:
    rng, embeddings = np.random.default_rng(1), embeddings_of(store)
    twin = Twin(embeddings)
    batches = [batch_of(rng) for _ in range(8)]
    for (_, twins), step in steps_of(embeddings, batches, is_ahead):
        gradients = gradients_of(step.activations)
        twin.step([Forward(twins, gradients)])
        step.update(gradients)
    twin.assert_same()
    assert store.table("a").t == 8


def test_activations_are_those_of_the_store_to_the_bit(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(2), embeddings_of(embedded)
    given, twins = batch_of(rng)
    found = embeddings.lookup(given).activations
    for feature, table in features_of(embeddings):
        ids, offsets, weights = twins[feature]
        if offsets is None:
            wanted = embedded.table(table.name).lookup(ids).reshape(2, 5, 2)
        else:
            wanted = embedded.table(table.name).lookup_pooled(
                ids, offsets, mode=table.mode, weights=weights
            )
        np.testing.assert_array_equal(found[feature], wanted, feature)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_what_has_no_gradient_is_not_updated(store: Store, is_ahead: bool) -> None:
    rng, embeddings = np.random.default_rng(3), embeddings_of(store)
    twin = Twin(embeddings)
    batches = [batch_of(rng) for _ in range(6)]
    steps = steps_of(embeddings, batches, is_ahead)
    for number, ((_, twins), step) in enumerate(steps):
        gradients: dict[str, Any] = dict(gradients_of(step.activations))
        if number % 3 == 1:
            gradients = {"z": gradients["z"], "x": None, "y": gradients["y"]}
        elif number % 3 == 2:
            gradients = {"x": None}
        if number % 3 < 2:
            twin.step([Forward(twins, dict.fromkeys("xyzi") | gradients)])
        step.update(gradients)
    facts = store.table_facts()
    assert (facts["a"].t, facts["b"].t, facts["c"].t) == (4, 4, 2)
    twin.assert_same()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_rows_that_a_function_pools_are_those_of_numpy(store: Store, is_ahead: bool) -> None:
    rng, embeddings = np.random.default_rng(4), embeddings_of(store)
    twin = Twin(embeddings)
    batches = [batch_of(rng) for _ in range(8)]

    @jax.jit
    def train(rows: Any, places: Any) -> Any:
        return jax.grad(lambda rows: loss_of(pool(rows, places)))(rows)

    for (_, twins), step in steps_of(embeddings, batches, is_ahead):
        pooled = pool(step.rows, step.places)
        for feature, activations in step.activations.items():
            np.testing.assert_allclose(pooled[feature], activations, rtol=1e-6, atol=1e-6)
        gradients = train(step.rows, step.places)
        share = {}
        for table in embeddings.tables.values():
            ids = np.concatenate([twins[feature][0] for feature in table.features])
            _, first = np.unique(ids, return_index=True)
            keys = ids[np.sort(first)]  # as they occur first
            assert not np.asarray(gradients[table.name][len(keys) :]).any()
            share[table.name] = (keys, np.asarray(gradients[table.name])[: len(keys)])
        twin.step_of_ranks([share])
        step.update_unique(gradients)
    twin.assert_same()


def test_gradients_of_rows_are_those_of_bags_within_rounding(embedded: Store) -> None:
    options = {"dim": 4, "rows": ROWS, "optimizer": Sgd(0.1), "initializer": Uniform(-1, 1)}
    by_bags, by_rows = (
        Embeddings(embedded, [Bag(name, features=["x", "y"], mode=mode, seed=3, **options)])
        for name, mode in (("bags", "mean"), ("rows", "mean"))
    )
    given, _ = batch_of(np.random.default_rng(5))
    given["x"] = given["x"][:2]
    step = by_bags.lookup(given)
    step.update(jax.grad(loss_of)(step.activations, "xy"))
    step = by_rows.lookup(given)
    step.update_unique(jax.grad(lambda rows: loss_of(pool(rows, step.places), "xy"))(step.rows))
    found = [embedded.table(name).lookup(np.arange(ROWS)) for name in ("bags", "rows")]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_options_are_of_one_update(embedded: Store) -> None:
    rng, embeddings = np.random.default_rng(7), embeddings_of(embedded)
    twin = Twin(embeddings)
    for options in ({}, {"learning_rate": 0.5}, {"gradient_scale": 0.25}):
        given, twins = batch_of(rng)
        step = embeddings.lookup(given)
        gradients = gradients_of(step.activations)
        twin.step([Forward(twins, gradients)], **options)
        step.update(gradients, **options)
    twin.assert_same()


def test_gradients_that_are_not_finite_are_refused_or_skipped(store: Store) -> None:
    embeddings = Embeddings(store, [Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))])
    batches = [{"x": np.array([[1, 2]])}] * 2
    for step in embeddings.ahead(batches, features=lambda batch: batch):
        infinite = {"x": jnp.full((1, 4), jnp.inf)}
        with pytest.raises(InvalidArgumentError, match="finite"):
            step.update(infinite)
        done = step.update(infinite, on_nonfinite="skip")
        assert done is not None and done.skipped
    assert store.table("t").t == 0


def test_ranks_share_a_step_and_its_update_is_their_mean(server: Server) -> None:
    world_size, shares = 2, [[], []]
    rng = np.random.default_rng(8)
    batches = [[batch_of(rng) for _ in range(count)] for count in (5, 3)]

    def train(rank: int) -> None:
        with patient(server.address) as store:
            embeddings = embeddings_of(store)
            twin = Twin(embeddings)
            loop = {"name": "ranks", "rank": rank, "world_size": world_size}
            for step in embeddings.ahead(batches[rank], features=lambda batch: batch[0], **loop):
                gradients = gradients_of(step.activations)
                shares[rank].append(twin.share([Forward(step.batch[1], gradients)]))
                step.update(gradients)
            assert embeddings.last_step == 5

    with ThreadPoolExecutor(world_size) as threads:
        list(threads.map(train, range(world_size)))
    with patient(server.address) as store:
        twin = Twin(embeddings_of(store))
    for of_step in zip_longest(*shares):  # the last ones are of rank 0 alone
        twin.step_of_ranks([of for of in of_step if of], gradient_scale=1 / world_size)
    with patient(server.address) as store:
        for name in ("a", "b", "c"):
            assert store.table(name).digest() == twin.digest(name)


def test_an_update_of_a_step_that_is_finished_is_refused(embedded: Store) -> None:
    embeddings = Embeddings(
        embedded, [Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))]
    )
    steps: list[Step] = []
    for step in embeddings.ahead([{"x": np.array([[1]])}], features=lambda batch: batch):
        steps.append(step)
        gradients = jax.tree.map(jnp.ones_like, step.activations)
        step.update(gradients)
        with pytest.raises(InvalidArgumentError, match="called twice for this batch"):
            step.update(gradients)
        with pytest.raises(InvalidArgumentError, match="loop before"):
            next(embeddings.ahead([], features=lambda batch: batch))
    assert embeddings.last_step == steps[0].number == 1


# Loops, evaluation, copies


def test_a_step_that_is_not_finished_is_released_with_a_warning(embedded: Store) -> None:
    table = Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))
    embeddings = Embeddings(embedded, [table])
    with pytest.warns(UserWarning, match="step 1 was looked up"):
        for step in embeddings.ahead([{"x": np.array([[1]])}] * 2, features=lambda batch: batch):
            assert step.activations
    assert embeddings.last_step == 2
    assert embedded.table("t").t == 0


def test_a_step_that_is_not_used_is_released_and_a_skipped_one_skipped(embedded: Store) -> None:
    embeddings = Embeddings(
        embedded, [Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))]
    )
    for step in embeddings.ahead([{"x": np.array([[1]])}] * 4, features=lambda batch: batch):
        if step.number == 2:
            step.skip()
        if step.number == 3:
            break
    assert embeddings.last_step == 2
    assert embedded.table("t").t == 0
    assert embedded.sessions.stats() == []


def test_evaluation_admits_no_row(embedded: Store) -> None:
    embeddings = embeddings_of(embedded)
    given, _ = batch_of(np.random.default_rng(10))
    seen = embeddings.lookup(given, admit=False).activations
    assert embedded.table("a").stats()["resident_rows"] == 0
    for feature, activations in embeddings.lookup(given).activations.items():
        np.testing.assert_array_equal(activations, seen[feature])
    assert embedded.table("a").stats()["resident_rows"] > 0


def test_a_step_may_be_updated_by_gradients_alone(embedded: Store) -> None:
    table = Bag("t", dim=4, rows=ROWS, features=["x"], optimizer=Sgd(1))
    embeddings = Embeddings(embedded, [table])
    for step in embeddings.ahead([{"x": np.array([[1]])}], features=lambda batch: batch):
        assert step.update({"x": np.ones((1, 4), np.float32)}) is not None
    assert embedded.table("t").t == 1


def test_a_copy_has_its_own_gradients(embedded: Store) -> None:
    embeddings = embeddings_of(embedded)
    copied = copy.deepcopy(embeddings)
    assert copied.store is embedded
    given = {"x": jnp.ones((1, 1), int)} | {name: jnp.ones(1, int) for name in "yzi"}
    jax.grad(lambda anchor: loss_of(copied.callback(given, anchor)))(jnp.zeros(()))
    assert embeddings.step() is None
    assert copied.step() is not None


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_program_clips_by_the_norm_of_dense_gradients_and_of_rows(
    embedded: Store, is_ahead: bool
) -> None:
    """As `optax.clip_by_global_norm` has it of both; of `step.rows` it is that itself."""
    rng, embeddings = np.random.default_rng(9), embeddings_of(embedded)
    twin, batches = Twin(embeddings), [batch_of(rng) for _ in range(3)]
    for (_, twins), step in steps_of(embeddings, batches, is_ahead):
        gradients = gradients_of(step.activations)
        by_row = jax.grad(lambda rows, places: loss_of(pool(rows, places)))(step.rows, step.places)
        of_rows = np.sqrt(sum(np.square(of).sum() for of in jax.tree.leaves(by_row)))
        norm = step.grad_norm(gradients)
        assert norm == pytest.approx(float(of_rows), rel=1e-5)
        scale = min(1.0, 0.5 / np.hypot(1.0, norm))  # with a dense part whose norm is 1
        step.update(gradients, gradient_scale=scale)
        twin.step([Forward(twins, gradients)], gradient_scale=scale)
    twin.assert_same()
    with pytest.raises(InvalidArgumentError, match="features"):
        embeddings.lookup(batches[0][0]).grad_norm({"other": np.ones(3)})

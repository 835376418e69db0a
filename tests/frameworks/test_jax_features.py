"""Features in one `Embeddings`: of one table in several ways, of two tables, padded, weighted."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import Adam, InvalidArgumentError, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.jax import Bag, Embeddings, Ids, pool  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin  # noqa: E402
from tests.frameworks.on_jax import ROWS  # noqa: E402
from tests.serving import Server, patient  # noqa: E402

NAMES = ["item@a", "item@b", "history", "seen"]
GIVEN = {
    "item": np.array([3, 7, -1]),
    "history": np.array([[3, 0, 5], [0, 0, 0], [7, 7, 3]]),  # 0 is padding of "a"
    "seen": (np.array([3, 3, 0, 7, 9, -1]), np.array([0, 3, 3])),
}
OF_TWIN: dict[str, Any] = {
    "item@a": (np.array([3, 7]), np.array([0, 1, 2, 2]), None),
    "item@b": (np.array([3, 7]), np.array([0, 1, 2, 2]), None),
    "history": (np.array([3, 5, 7, 7, 3]), np.array([0, 1, 1, 2, 2, 2, 2, 3, 4, 5]), None),
    "seen": (np.array([3, 3, 7, 9]), np.array([0, 2, 2, 4]), None),
}


def embeddings_of(store: Store) -> Embeddings:
    of: dict[str, Any] = {"rows": ROWS, "optimizer": Adam(0.1), "initializer": Uniform(-1, 1)}
    a = of | {"dim": 4, "padding_idx": 0}
    return Embeddings(
        store,
        [
            Bag("a", features=["item"], **a),
            Bag("b", features=["item"], **of | {"dim": 1}),
            Ids("a", features=["history"], **a),
            Bag("a", features=["seen"], mode="mean", **a),
        ],
    )


def loss_of(activations: dict[str, Any]) -> Any:
    return sum(jnp.square(of).cumsum(0).sum() for of in activations.values())


gradients_of = jax.jit(jax.grad(loss_of))


def flat(gradients: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(of).reshape(-1, of.shape[-1]) for name, of in gradients.items()}


@pytest.mark.parametrize("is_ahead", [False, True])
def test_one_table_has_one_update_a_step_whatever_its_modes(store: Store, is_ahead: bool) -> None:
    embeddings = embeddings_of(store)
    twin = Twin(embeddings)
    loop: Any = embeddings.ahead([GIVEN] * 2, features=lambda given: given)
    for step in loop if is_ahead else (embeddings.lookup(GIVEN) for _ in range(2)):
        assert list(step.activations) == NAMES
        assert not np.asarray(step.activations["history"])[GIVEN["history"] == 0].any()
        gradients = gradients_of(step.activations)
        twin.step([Forward(OF_TWIN, flat(gradients))])
        step.update(gradients)
    twin.assert_same()
    assert (store.table("a").t, store.table("b").t) == (2, 2)


def test_rows_that_a_function_pools_are_the_same(embedded: Store) -> None:
    step = embeddings_of(embedded).lookup(GIVEN)
    pooled = pool(step.rows, step.places)
    assert list(pooled) == NAMES
    for name, rows in pooled.items():
        np.testing.assert_allclose(rows, step.activations[name], rtol=1e-6)


def test_callbacks_know_a_feature_of_two_tables(embedded: Store) -> None:
    embeddings = embeddings_of(embedded)
    twin, wanted = Twin(embeddings), embeddings.lookup(GIVEN).activations
    ids = jax.tree.map(lambda of: jnp.asarray(of, jnp.int32), GIVEN)

    @jax.jit
    def found_of(anchor: Any, ids: Any) -> Any:
        activations = embeddings.callback(ids, anchor)
        return loss_of(activations), activations

    _, found = jax.grad(found_of, has_aux=True)(0.0, ids)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], wanted[name])
    embeddings.step()
    twin.step([Forward(OF_TWIN, flat(gradients_of(wanted)))])
    twin.assert_same()


def test_ranks_share_such_a_step(server: Server) -> None:
    shares: list[Any] = [None, None]
    batches = [GIVEN, {**GIVEN, "item": np.array([-1, -1, -1])}]
    of_twin = [OF_TWIN, dict(OF_TWIN)]
    for name in ("item@a", "item@b"):
        of_twin[1][name] = np.array([], np.int64), np.array([0, 0, 0, 0]), None

    def train(rank: int) -> None:
        with patient(server.address) as store:
            embeddings = embeddings_of(store)
            loop = {"name": "ranks", "rank": rank, "world_size": 2}
            for step in embeddings.ahead([batches[rank]], features=lambda given: given, **loop):
                gradients = gradients_of(step.activations)
                forward = Forward(of_twin[rank], flat(gradients))
                shares[rank] = Twin(embeddings).share([forward])
                step.update(gradients)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(train, range(2)))
    with patient(server.address) as store:
        embeddings = embeddings_of(store)
        twin = Twin(embeddings)
        twin.step_of_ranks(shares, gradient_scale=0.5)
        twin.assert_same()


def test_a_weighted_mean_is_divided_by_the_sum_of_weights(embedded: Store) -> None:
    options: dict[str, Any] = {"dim": 4, "rows": ROWS, "optimizer": Adam(0.1), "padding_idx": 0}
    embeddings = Embeddings(embedded, [Bag("t", features=["x"], mode="mean", **options)])
    ids, weights = np.array([3, 3, 0, 7, 9, 4]), np.array([1, 3, 9, 2, 1, -1], np.float32)
    offsets = np.array([0, 3, 4, 4])  # the last bag's weights come to 0
    step = embeddings.lookup({"x": (ids, offsets, weights)})
    left = np.array([3, 3, 7, 9, 4])
    shares = np.array([0.25, 0.75, 1, 1, -1], np.float32)
    rows = embedded.table("t").lookup(left)
    wanted = [shares[:2] @ rows[:2], rows[2], np.zeros(4), rows[3] - rows[4]]
    np.testing.assert_allclose(step.activations["x"], wanted, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(pool(step.rows, step.places)["x"], wanted, rtol=1e-6, atol=1e-7)
    gradients = gradients_of(step.activations)
    bags = left, np.array([0, 2, 3, 3, 5]), shares
    # The same as a weighted sum, which the twin knows.
    total = Embeddings(embedded, [Bag("t", features=["x"], **options)])
    twin = Twin(total)
    twin.step([Forward({"x": bags}, gradients)])
    step.update(gradients)
    twin.assert_same()


def test_entries_of_a_table_agree(embedded: Store) -> None:
    options: dict[str, Any] = {"dim": 4, "rows": ROWS, "optimizer": Adam(0.1)}
    one = Bag("t", features=["x"], **options)
    for other, message in (
        (Ids("t", features=["y"], **options | {"dim": 5}), "'t'.* same dim"),
        (Ids("t", features=["x"], **options), r"'x@t'.*two names"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            Embeddings(embedded, [one, other])
    assert embedded.tables() == []

"""Features in one layer: of one table in several ways, of two tables, padded, weighted."""

from typing import Any

import numpy as np
import pytest

from embstore import Adam, Sgd, Uniform
from embstore.handles.store import Store
from tests.frameworks.numpy_twin import Forward, Twin
from tests.frameworks.on_keras import as_it_is, compiled, keras, tf
from tests.frameworks.tables import DIM, ROWS, TABLE, rows_of

from embstore_client.keras import (  # isort: skip
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Ids,
    StoreStep,
)

RUNS = pytest.mark.parametrize("run", [as_it_is, compiled])
NAMES = ["item@a", "item@b", "history", "seen"]
HISTORY = [[3, 0, 5], [0, 0, 0], [7, 7, 3]]  # 0 is padding of "a"
OF_TWIN: dict[str, Any] = {
    "item@a": (np.array([3, 7]), np.array([0, 1, 2, 2]), None),
    "item@b": (np.array([3, 7]), np.array([0, 1, 2, 2]), None),
    "history": (np.array([3, 5, 7, 7, 3]), np.array([0, 1, 1, 2, 2, 2, 2, 3, 4, 5]), None),
    "seen": (np.array([3, 3, 7, 9]), np.array([0, 2, 2, 4]), None),
}


def given() -> dict[str, Any]:
    seen = tf.RaggedTensor.from_row_splits(
        tf.constant([3, 3, 0, 7, 9, -1], tf.int64), tf.constant([0, 3, 3, 6], tf.int64)
    )
    return {"item": tf.constant([3, 7, -1]), "history": tf.constant(HISTORY), "seen": seen}


def collection(store: Store) -> EmbeddingBagCollection:
    of: dict[str, Any] = {"rows": ROWS, "optimizer": Adam(0.1), "initializer": Uniform(-1, 1)}
    a = of | {"dim": DIM, "padding_idx": 0}
    return EmbeddingBagCollection(
        store,
        [
            Bag("a", features=["item"], **a),
            Bag("b", features=["item"], **of | {"dim": 1}),
            Ids("a", features=["history"], **a),
            Bag("a", features=["seen"], mode="mean", **a),
        ],
    )


@RUNS
def test_one_table_has_one_update_a_step_whatever_its_modes(store: Store, run: Any) -> None:
    layer = collection(store)
    twin = Twin(layer)
    weighting = {
        "item@a": np.linspace(-1, 1, 3 * DIM),
        "item@b": np.linspace(-1, 1, 3),
        "history": np.linspace(-1, 1, 9 * DIM),
        "seen": np.linspace(-1, 1, 3 * DIM),
    }
    factors = {name: of.astype(np.float32) for name, of in weighting.items()}

    @run
    def went_back(features: Any) -> Any:
        with tf.GradientTape() as tape:
            found = layer(features)
            loss = tf.add_n(
                [tf.reduce_sum(tf.reshape(found[name], [-1]) * factors[name]) for name in NAMES]
            )
        tape.gradient(loss, [])
        return found

    for batch in layer.ahead([given()] * 2, features=lambda batch: batch):
        found = went_back(batch)
        assert list(found) == NAMES
        assert not found["history"].numpy()[np.array(HISTORY) == 0].any()
        layer.step()
        dims = {"item@b": 1}
        gradients = {n: of.reshape(-1, dims.get(n, DIM)) for n, of in factors.items()}
        twin.step([Forward(OF_TWIN, gradients)])
    twin.assert_same()
    assert (store.table("a").t, store.table("b").t) == (2, 2)


def test_configurations_keep_entries_and_padding(embedded: Store) -> None:
    layer = collection(embedded)
    made = EmbeddingBagCollection.from_config(layer.get_config())
    made.attach(embedded)
    assert made.entries == layer.entries
    assert [entry.padding_idx for entry in made.entries] == [0, None, 0, 0]
    for name, rows in layer(given()).items():
        np.testing.assert_array_equal(made(given())[name], rows)


@RUNS
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_weights_of_padding_have_no_gradient(embedded: Store, mode: Any, run: Any) -> None:
    layer = EmbeddingBag(embedded, "t", **TABLE, mode=mode, padding_idx=7)
    before = rows_of(embedded, "t")
    ids = tf.constant([[3, 7, 3], [7, -1, 7], [9, 4, -1]])
    is_id = tf.cast((ids != 7) & (ids != -1), tf.float32)
    rows, weights = tf.Variable(before), tf.Variable([[0.5, 9, 1.5], [9, 9, 9], [2, 3, 9.0]])

    @run
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            found = layer(ids, weights)
            loss = tf.reduce_sum(tf.square(found))
        with tf.GradientTape() as other:
            left = weights * is_id
            if mode == "mean":
                left = tf.math.divide_no_nan(left, tf.reduce_sum(left, axis=1, keepdims=True))
            wanted = tf.reduce_sum(tf.gather(rows, tf.maximum(ids, 0)) * left[..., None], axis=1)
            own = tf.reduce_sum(tf.square(wanted))
        of_rows, of_weights = other.gradient(own, [rows, weights])
        return (
            found,
            wanted,
            tape.gradient(loss, weights),
            of_weights,
            tf.convert_to_tensor(of_rows),
        )

    found, wanted, of_weights, wanted_of_weights, of_rows = gradients()
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(of_weights, wanted_of_weights, rtol=1e-5, atol=1e-6)
    layer.step()
    np.testing.assert_allclose(before - rows_of(embedded, "t"), of_rows, atol=1e-5)


def test_a_mean_whose_weights_come_to_zero_is_not_divided(embedded: Store) -> None:
    mean = EmbeddingBag(embedded, "t", **TABLE, mode="mean")
    total = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    weights, ids = tf.Variable([[1.0, -1.0], [0.0, 0.0]]), tf.constant([[3, 5], [7, 9]])
    found = []
    for layer in (mean, total):
        with tf.GradientTape() as tape:
            output = layer(ids, weights)
        found.append((output, tape.gradient(output, weights)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_padding_in_fit_trains_no_row_and_may_be_masked(embedded: Store) -> None:
    layer = Embedding(
        embedded,
        "t",
        dim=DIM,
        rows=ROWS,
        optimizer=Sgd(0.1),
        initializer=Uniform(-1, 1),
        padding_idx=0,
    )
    before = rows_of(embedded, "t")
    inputs = keras.Input((3,), dtype="int64")
    masked = keras.layers.Masking(0.0)(layer(inputs))
    outputs = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(masked))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    ids = np.array(HISTORY[::2] * 2)
    dataset = tf.data.Dataset.from_tensor_slices((ids, np.ones((4, 1)))).batch(2)
    announced = layer.ahead_dataset(dataset, features=lambda batch: batch[0])
    model.fit(announced, shuffle=False, verbose=0, callbacks=[StoreStep(layer)])
    changed = (rows_of(embedded, "t") != before).any(axis=1)
    assert set(np.flatnonzero(changed)) == {3, 5, 7}
    pooled = keras.Model(inputs, model.layers[-2].output).predict(ids[:1], verbose=0)
    np.testing.assert_allclose(pooled[0], rows_of(embedded, "t")[[3, 5]].mean(axis=0), rtol=1e-5)

"""Gradients of variables and of rows, clipped together: losses are those of Keras's own layers."""

from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError, Sgd, Uniform
from embstore.handles.store import Store
from tests.frameworks.bags_of_steps import ROWS
from tests.frameworks.on_keras import keras, one_table, tf

from embstore_client.keras import EmbeddingBag, StoreStep, clip_by_global_norm  # isort: skip

STEPS, RATE, MAX_NORM = 12, 0.3, 0.2


def batches() -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        (tf.constant(rng.zipf(1.3, (16, 3)) % ROWS), tf.constant(rng.standard_normal((16, 1))))
        for _ in range(STEPS)
    ]


def layer_of(store: Store) -> EmbeddingBag:
    return one_table(store, optimizer=Sgd(RATE), initializer=Uniform(-1, 1))


def dense_of() -> Any:
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense(1)
    dense.build((None, 4))
    return dense


def loss_of(dense: Any, pooled: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.square(dense(pooled) - tf.cast(labels, tf.float32)))


def trained_by_keras(store: Store) -> tuple[list[float], list[float]]:
    dense, rows = dense_of(), tf.Variable(store.table("t").lookup(np.arange(ROWS)))
    losses, norms = [], []
    for ids, labels in batches():
        with tf.GradientTape() as tape:
            pooled = tf.reduce_sum(tf.gather(rows, ids), axis=1)
            loss = loss_of(dense, pooled, labels)
        variables = [*dense.trainable_variables, rows]
        found = [tf.convert_to_tensor(of) for of in tape.gradient(loss, variables)]
        gradients, norm = tf.clip_by_global_norm(found, MAX_NORM)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign(variable - RATE * gradient)
        losses.append(float(loss))
        norms.append(float(norm))
    return losses, norms


@pytest.mark.parametrize("is_ahead", [False, True])
def test_both_are_clipped_as_tensorflow_does(embedded: Store, is_ahead: bool) -> None:
    layer, dense = layer_of(embedded), dense_of()
    wanted, wanted_norms = trained_by_keras(embedded)
    optimizer = keras.optimizers.SGD(RATE)

    @tf.function
    def gradients_of(ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(dense, layer(ids, training=True), labels)
        return loss, tape.gradient(loss, dense.trainable_variables)

    losses, norms = [], []
    loop: Any = batches()
    if is_ahead:
        loop = layer.ahead(loop, features=lambda batch: batch[0])
    for batch in loop:
        loss, gradients = gradients_of(*batch)
        gradients, norm = clip_by_global_norm(gradients, MAX_NORM, layer)
        optimizer.apply(gradients, dense.trainable_variables)
        layer.step()
        losses.append(float(loss))
        norms.append(norm)
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-5)
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-6)
    assert sum(norm > MAX_NORM for norm in norms) > STEPS // 2


def test_fit_clips_each_layer_by_its_own_norm(embedded: Store) -> None:
    """With Sgd, a row moves by the rate times its gradient."""
    layer = layer_of(embedded)
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    ids, labels = np.array([[1, 2], [3, 1]]), np.full((2, 1), 100.0)
    before = embedded.table("t").lookup(np.arange(ROWS))
    model.fit(ids, labels, batch_size=2, verbose=0, callbacks=[StoreStep(layer, max_norm=0.5)])
    moved = embedded.table("t").lookup(np.arange(ROWS)) - before
    assert np.linalg.norm(moved) == pytest.approx(0.5 * RATE, rel=1e-4)


def test_a_norm_that_is_not_finite_leaves_nothing_to_train(embedded: Store) -> None:
    layer = layer_of(embedded)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([[1, 2]])) * np.inf)
    tape.gradient(loss, [])
    (gradient,), norm = clip_by_global_norm([tf.ones(2)], 1.0, layer)
    assert not np.isfinite(norm)
    assert np.isnan(gradient).all()
    with pytest.raises(InvalidArgumentError, match="expected finite gradients"):
        layer.step()
    assert layer.step(on_nonfinite="skip").skipped


def test_where_it_cannot_be_called_it_says_so(embedded: Store) -> None:
    layer = layer_of(embedded)
    compiled = tf.function(lambda: clip_by_global_norm([tf.ones(2)], 1.0, layer), autograph=False)
    with pytest.raises(InvalidArgumentError, match=r"outside tf\.function"):
        compiled()
    for wrong in ([], [keras.layers.Dense(1)]):
        with pytest.raises(InvalidArgumentError, match="expected layers of a store"):
            clip_by_global_norm([tf.ones(2)], 1.0, *wrong)

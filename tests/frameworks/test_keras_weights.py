"""Keras's files of weights say of which rows they were, and loading them warns of others."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import Sgd
from embstore.handles.store import Store
from tests.frameworks.on_keras import keras, tf

from embstore_client.keras import EmbeddingBag  # isort: skip

IDS = np.array([[1, 2], [3, 4]])


def model_of(store: Store) -> tuple[Any, Any]:
    layer = EmbeddingBag(store, "t", dim=2, rows=9, optimizer=Sgd(0.5), mode="sum")
    inputs = keras.Input((2,), dtype="int64")
    return keras.Model(inputs, keras.layers.Dense(1)(layer(inputs))), layer


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("name", ["state.weights.h5", "state.keras"])
def test_weights_are_compared_with_the_rows_of_the_store(
    embedded: Store, tmp_path: Path, name: str
) -> None:
    model, layer = model_of(embedded)
    kept = [variable.numpy() for variable in model.trainable_variables]
    (model.save_weights if name.endswith("h5") else model.save)(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.load_weights(tmp_path / name)
        model_of(embedded)[0].load_weights(tmp_path / name)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(IDS, training=True))
    tape.gradient(loss, model.trainable_variables)
    layer.step()
    model.trainable_variables[0].assign_add(tf.ones_like(model.trainable_variables[0]))
    with pytest.warns(UserWarning, match=r"rows of 't' \(t 0, here 1\) are not those"):
        model.load_weights(tmp_path / name)
    for variable, before in zip(model.trainable_variables, kept, strict=True):
        np.testing.assert_array_equal(variable.numpy(), before)

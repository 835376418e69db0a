"""Keras on TensorFlow as tests have it: quiet, and on the CPU. Without them, tests are skipped.

from tests.frameworks.on_keras import keras, tf

And what tests of steps do there: `test_steps.py` says what each is for.
"""

import os
from typing import Any

import numpy as np
import pytest

from tests.frameworks.bags_of_steps import Modules, drawn

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

REASON = "needs keras and tensorflow, which embstore does not depend on"
keras = pytest.importorskip("keras", reason=REASON)
tf = pytest.importorskip("tensorflow", reason=REASON)
tf.config.set_visible_devices([], "GPU")

import embstore_client.keras  # noqa: E402


def as_it_is(function: Any) -> Any:
    return function


def compiled(function: Any) -> Any:
    return tf.function(function, reduce_retracing=True)


MODULES = Modules(embstore_client.keras)
collection, one_table = MODULES.collection, MODULES.one_table


def batch_of(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return features as TensorFlow has them, "x" with weights, and as the twin has them."""
    plain, weights, twins = drawn(rng)
    given: dict[str, Any] = {
        feature: tf.RaggedTensor.from_row_splits(ids, offsets)
        for feature, (ids, offsets) in plain.items()
    }
    given["x"] = (given["x"], given["x"].with_values(weights))
    return given, twins


def loss_of(outputs: dict[str, Any], features: str = "xyz") -> Any:
    squares = [tf.square(outputs[feature]) for feature in features]
    return tf.sin(tf.reduce_sum(tf.concat(squares, axis=1)))


class Adapter:
    features = "xyz"
    collection = staticmethod(collection)
    one_table = staticmethod(one_table)
    batch_of = staticmethod(batch_of)
    ids = staticmethod(tf.constant)

    def __init__(self, *compiled_too: str) -> None:
        self._run = compiled if compiled_too else as_it_is

    def call(self, layer: Any, *arguments: Any, training: bool = True) -> Any:
        return self._run(layer)(*arguments, training=training)

    def back(self, layer: Any, batches: list[Any], features: str = "xyz") -> list[Any]:
        """Gradients are those of zeros within the outputs."""
        batch_probes = [
            {feature: tf.zeros([6, dim]) for feature, dim in zip("xyz", (4, 4, 3), strict=True)}
            for _ in batches
        ]

        @self._run
        def went_back(batches: Any, probes: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(probes)
                losses = []
                for given, zeros in zip(batches, probes, strict=True):
                    outputs = layer(given, training=True)
                    within = {feature: rows + zeros[feature] for feature, rows in outputs.items()}
                    losses.append(loss_of(within, features))
                loss = tf.add_n(losses)
            return tape.gradient(loss, probes)

        return went_back(list(batches), batch_probes)

    def back_of(self, layer: Any, ids: Any, factor: float = 1.0) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids)) * factor)
        tape.gradient(loss, [])

    def weighted(self, ids: Any, weights: Any) -> tuple[Any, ...]:
        return ids, weights

    def ahead(self, layer: Any, batches: Any, features: Any = lambda ids: ids, **how: Any) -> Any:
        return layer.ahead(batches, features=features, **how)

    def forget(self, layer: Any) -> None:
        layer.clear_gradients()

    def carried(self, layer: Any) -> tuple[Any, bytes]:
        given = layer.get_config()
        made = type(layer).from_config(given)
        assert made.get_config() == given
        return made, str(given).encode()

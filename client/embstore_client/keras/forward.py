"""One call of a layer: rows to activations, and their gradients on the way back.

The lookup of all features is one Python function of TensorFlow, which gives the call its number
when it runs: within a graph such functions run in the order of the program. Each feature is then
passed on by an operation of its own, whose backward pass hands what it gets to another Python
function. So a feature that the loss does not use leaves no gradient, and none of zeros. (Where a
call is in a tf.function, and its tape outside, TensorFlow makes zeros of what is not used.) That
function returns the gradient of what is watched: a graph leaves out what nothing depends on.

What the way back needs travels in tensors. Nothing is left behind by a call without one.

TensorFlow runs both in threads that flush denormals; what is computed here keeps them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.gradients import KeptGradients
from embstore_client.frameworks.occurrences import Occurrences, keys_by_table, places
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import Ids
from embstore_client.keras.features import Given

LookUp = Callable[[dict[str, Keys]], dict[str, Found]]


class Watched:
    """A scalar that every tape watches, so that it goes back through what depends on it.

    Kept in an object of its own, where Keras looks for no variables.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._variable = tf.Variable(0.0, trainable=True, name="watched")

    def __call__(self) -> Any:
        """Return its value, as a tensor that depends on it."""
        return self._variable.read_value()


class Forward:
    """One call of a layer over some features."""

    def __init__(
        self,
        tables: Mapping[str, Ids],
        given: Mapping[str, Given],
        look_up: LookUp,
        gradients: KeptGradients | None,
    ) -> None:
        """Prepare a call.

        Parameters
        ----------
        look_up : returns the rows of keys (n,) by table, when it runs
        gradients : where those of activations go; None: nowhere, and weights alone get theirs
        """
        self._tables = tables
        self._look_up = look_up
        self._gradients = gradients
        self._features = [
            (feature, table, given[feature])
            for table in tables.values()
            for feature in table.features
        ]

    def activations(self, watched: Watched) -> dict[str, Any]:
        """Return float32 activations by feature."""
        inputs = [part for *_, given in self._features for part in given.tensors]
        weighted = [feature for feature, _, given in self._features if given.is_weighted]
        dtypes = [tf.int64] + [tf.float32] * (len(self._features) + len(weighted))
        number, *outputs = tf.numpy_function(self._looked_up, inputs, dtypes)
        rows = dict(zip(weighted, outputs[len(self._features) :], strict=True))
        result = {}
        for index, (feature, table, given) in enumerate(self._features):
            output = tf.reshape(outputs[index], tf.concat([given.shape, [table.dim]], axis=0))
            output.set_shape([*given.static_shape, table.dim])
            if self._gradients is not None or given.is_weighted:
                of_weights = rows.get(feature, tf.zeros([0, table.dim]))
                output = self._passed(index, number, output, of_weights, watched)
            result[feature] = output
        return result

    def _passed(self, index: int, number: Any, output: Any, rows: Any, watched: Watched) -> Any:
        given = self._features[index][2]

        @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
        def passed(_: Any, output: Any, weights: Any) -> Any:
            def back(gradient: Any) -> tuple[Any, None, Any]:
                inputs = [number, *given.tensors, rows, tf.convert_to_tensor(gradient)]
                keep = partial(self._keep, index)
                of_watched, of_weights = tf.numpy_function(keep, inputs, [tf.float32, tf.float32])
                of_watched.set_shape([])
                return of_watched, None, tf.reshape(of_weights, tf.shape(weights))

            return tf.identity(output), back

        return passed(watched(), output, given.weights)

    # When it runs: arrays of NumPy in the memory of TensorFlow, and back

    def _looked_up(self, *arrays: Any) -> list[Any]:
        """Return the number of the call, the activations of each feature, and the rows of the
        weighted ones. They are new arrays, which TensorFlow may use as they are."""
        number = 0 if self._gradients is None else self._gradients.next_forward()
        given = {
            feature: self._occurrences(index, arrays[3 * index : 3 * index + 3])
            for index, (feature, *_) in enumerate(self._features)
        }
        found = self._look_up(keys_by_table(self._tables, given))
        outputs, weighted = [], []
        for _, of, place in places(self._tables, given):
            rows = found[of.table].of(place)
            outputs.append(rows.copy() if of.offsets is None else of.pooled(rows))
            if of.weights is not None:
                weighted.append(rows.copy())
        return [np.int64(number), *outputs, *weighted]

    def _occurrences(self, index: int, arrays: tuple[Any, ...]) -> Occurrences:
        feature, table, given = self._features[index]
        keys, offsets, weights = arrays
        if given.is_weighted and len(weights) != len(keys):
            raise InvalidArgumentError(
                f"feature {feature!r}: expected {len(keys)} weights, found {len(weights)}"
            )
        return Occurrences(
            table.name,
            keys.copy(),
            offsets.copy() if given.is_pooled else None,
            weights.copy() if given.is_weighted else None,
            mode=getattr(table, "mode", "sum"),
            shape=(len(offsets) - 1,) if given.is_pooled else keys.shape,
            is_single=not given.is_pooled,
        )

    def _keep(self, index: int, number: Any, *arrays: Any) -> tuple[Any, Any]:
        """Keep the gradient of a feature's activations; return those of what is watched, which is
        0, and of its weights."""
        of, (rows, gradient) = self._occurrences(index, arrays[:3]), arrays[3:]
        if self._gradients is not None:
            self._gradients.keep((int(number), index), of, gradient)
        if of.offsets is None or of.weights is None:
            return np.float32(0), np.zeros(0, np.float32)
        of_ids = np.repeat(gradient, np.diff(of.offsets), axis=0)
        return np.float32(0), np.einsum("nd,nd->n", of_ids, rows)

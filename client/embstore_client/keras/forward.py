"""One call of a layer: from rows to activations, and their gradients in the backward pass.

The lookup of all features is one Python function of TensorFlow (`tf.numpy_function`).
When the function runs, it numbers the call: gradients are later sent in the order of these numbers.
Within a graph such functions run in the order of the program. Each feature then passes through a
separate operation. The backward pass of this operation gives the feature's gradient to a second
Python function. A feature that the loss does not use leaves no gradient, not even zeros. (If a call
is inside a tf.function, and the tape is outside, TensorFlow makes zeros for unused outputs.) The
second Python function returns the gradient of the watched scalar, because a graph omits operations
whose results are not used.

The arguments of the backward pass are stored in tensors. So a call without a backward pass leaves
no data in Python.

TensorFlow runs the two functions in threads that flush denormals; the code of this module keeps
denormals.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.gradients import KeptGradients
from embstore_client.frameworks.occurrences import (
    Occurrences,
    keys_by_table,
    places,
    totals_of,
)
from embstore_client.frameworks.padding import is_id
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import FeatureLookup
from embstore_client.keras.features import FeatureIds

LookUp = Callable[[dict[str, Keys]], dict[str, Found]]


class Watched:
    """A scalar that every tape watches, so that backward passes reach values that depend on it.

    The variable is an attribute of this separate object, where Keras does not look for variables.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._variable = tf.Variable(0.0, trainable=True, name="watched")

    def __call__(self) -> Any:
        """Return the scalar as a tensor that depends on the variable."""
        return self._variable.read_value()


class Forward:
    """One call of a layer over some features."""

    def __init__(
        self,
        lookups: Sequence[FeatureLookup],
        given: Mapping[str, FeatureIds],
        look_up: LookUp,
        gradients: KeptGradients | None,
    ) -> None:
        """Prepare a call.

        Parameters
        ----------
        look_up : called when the graph runs; returns the rows of keys (n,) by table
        gradients : keeps the gradients of activations. None: these gradients are dropped, and only
            weights get gradients
        """
        self._look_up = look_up
        self._gradients = gradients
        self._features = [(lookup, given[lookup.name]) for lookup in lookups]

    def activations(self, watched: Watched) -> dict[str, Any]:
        """Return float32 activations by feature."""
        inputs = [part for *_, given in self._features for part in given.tensors]
        weighted = [lookup.name for lookup, given in self._features if given.is_weighted]
        dtypes = [tf.int64] + [tf.float32] * (len(self._features) + len(weighted))
        number, *outputs = tf.numpy_function(self._looked_up, inputs, dtypes)
        rows = dict(zip(weighted, outputs[len(self._features) :], strict=True))
        result = {}
        for index, (lookup, given) in enumerate(self._features):
            dim = lookup.of.dim
            output = tf.reshape(outputs[index], tf.concat([given.shape, [dim]], axis=0))
            output.set_shape([*given.static_shape, dim])
            if self._gradients is not None or given.is_weighted:
                of_weights = rows.get(lookup.name, tf.zeros([0, dim]))
                output = self._passed(index, number, output, of_weights, watched)
            result[lookup.name] = output
        return result

    def _passed(self, index: int, number: Any, output: Any, rows: Any, watched: Watched) -> Any:
        given = self._features[index][1]

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

    # These functions are called when the graph runs. Their arguments are NumPy arrays in
    # TensorFlow's memory.

    def _looked_up(self, *arrays: Any) -> list[Any]:
        """Return the number of the call, the activations of each feature, and the rows of the
        weighted features. The arrays are new, so TensorFlow may use them without a copy."""
        number = 0 if self._gradients is None else self._gradients.next_forward()
        given = {
            lookup.name: _occurrences(lookup, of, arrays[3 * index : 3 * index + 3])
            for index, (lookup, of) in enumerate(self._features)
        }
        found = self._look_up(keys_by_table(given))
        outputs, weighted = [], []
        for _, of, place in places(given):
            rows = found[of.table].of(place)
            outputs.append(rows.copy() if of.offsets is None else of.pooled(rows))
            if of.weights is not None:
                weighted.append(rows.copy())
        return [np.int64(number), *outputs, *weighted]

    def _keep(self, index: int, number: Any, *arrays: Any) -> tuple[Any, Any]:
        """Keep the gradient of a feature's activations. Return the gradient of the watched scalar,
        which is 0, and the gradient of the feature's weights."""
        lookup, given = self._features[index]
        of, (rows, gradient) = _occurrences(lookup, given, arrays[:3]), arrays[3:]
        if self._gradients is not None:
            self._gradients.keep((int(number), index), of, gradient)
        if not given.is_weighted:
            return np.float32(0), np.zeros(0, np.float32)
        products = np.einsum("nd,nd->n", np.repeat(gradient, of.counts, axis=0), rows)
        keys, _, weights = arrays[:3]
        are_ids = is_id(keys, lookup.of.padding_key)
        of_weights = np.zeros(len(keys), np.float32)
        if getattr(lookup.of, "mode", "sum") == "mean":
            products = _of_means(products, weights[are_ids], of)
        of_weights[are_ids] = products
        return np.float32(0), of_weights


def occurrences_of(
    lookups: Sequence[FeatureLookup], given: Mapping[str, FeatureIds]
) -> dict[str, Occurrences]:
    """Return the ids of every lookup by its name, from tensors whose values are known now."""
    return {
        lookup.name: _occurrences(
            lookup, given[lookup.name], tuple(map(np.asarray, given[lookup.name].tensors))
        )
        for lookup in lookups
    }


def _occurrences(lookup: FeatureLookup, given: FeatureIds, arrays: tuple[Any, ...]) -> Occurrences:
    keys, offsets, weights = arrays
    if given.is_weighted and len(weights) != len(keys):
        raise InvalidArgumentError(
            f"feature {lookup.name!r}: expected {len(keys)} weights, found {len(weights)}"
        )
    whole = Occurrences(
        lookup.of.name,
        keys.copy(),
        offsets.copy() if given.is_pooled else None,
        weights.copy() if given.is_weighted else None,
        mode=getattr(lookup.of, "mode", "sum"),
        shape=(len(offsets) - 1,) if given.is_pooled else keys.shape,
        is_single=not given.is_pooled,
    )
    return whole.without_padding(lookup.of.padding_key).as_sum()


def _of_means(products: Any, weights: Any, of: Occurrences) -> Any:
    """Return the gradients of weights, (n,), where each weight was divided by the total of its bag.

    Parameters
    ----------
    products : the gradients of the quotients, (n,); the quotients are the weights of `of`
    """
    assert of.offsets is not None
    totals = totals_of(weights, of.offsets)
    bags = np.repeat(np.arange(len(totals)), of.counts)
    common = np.bincount(bags, of.weights * products, len(totals))
    # If a total is 0, the weights were not divided, even if they are not all 0.
    common, divisors = np.where(totals == 0, 0, common), np.where(totals == 0, 1, totals)
    return (products - common[bags]) / divisors[bags]

"""A dataset that reads a batch only when the batch is requested.

`fit` requests each batch just before training on it. By default TensorFlow adds a prefetch to a
dataset; here the prefetch is turned off. If TensorFlow knows the number of batches, it does not
request another batch at the end.
"""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]


def on_demand(batches: Callable[[], Iterator[Any]], like: Any) -> Any:
    """Return a dataset of the batches that `batches()` yields in each epoch. It has as many batches
    as `like`, a tf.data.Dataset, and they have the same shapes and dtypes."""
    found = tf.data.Dataset.from_generator(batches, output_signature=like.element_spec)
    count = int(like.cardinality())
    if count >= 0:  # the number is known and finite
        found = found.apply(tf.data.experimental.assert_cardinality(count))
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return found.with_options(options)

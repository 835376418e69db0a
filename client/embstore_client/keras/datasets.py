"""A dataset that reads no batch before it is asked for one.

`fit` asks for a batch when it trains on it. By default TensorFlow adds a prefetch to a dataset,
which is turned off here. If TensorFlow knows the number of batches, it does not ask for one more at
the end.
"""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]


def on_demand(batches: Callable[[], Iterator[Any]], like: Any) -> Any:
    """Return a dataset of the batches that `batches()` yields in each epoch, with the number and
    the form of `like`, a tf.data.Dataset."""
    found = tf.data.Dataset.from_generator(batches, output_signature=like.element_spec)
    count = int(like.cardinality())
    if count >= 0:  # neither unknown nor without end
        found = found.apply(tf.data.experimental.assert_cardinality(count))
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return found.with_options(options)

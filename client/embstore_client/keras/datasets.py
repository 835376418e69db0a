"""A dataset that reads nothing before it is asked for a batch.

`fit` asks when it trains on the batch. TensorFlow puts a prefetch behind a dataset on its own, and
does not ask for a batch behind the last one, whose number it knows.
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

"""Clips gradients of variables and of rows by their common norm, as `tf.clip_by_global_norm` does
for variables alone.

Rows are no variables, so an optimizer's `global_clipnorm`, which clips within compiled code, does
not see their gradients.
"""

from collections.abc import Sequence
from functools import partial
from math import hypot, nan
from typing import Any

import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.clipping import clip_factor
from embstore_client.frameworks.gradients import multiplied
from embstore_client.keras.layer import StoreLayer


def clip_by_global_norm(
    gradients: Sequence[Any], clip_norm: float, *layers: StoreLayer
) -> tuple[list[Any], float]:
    """Clip gradients of variables and of store layers together, between the backward pass and the
    steps, as `tf.clip_by_global_norm` clips gradients of variables.

    The norm is L2, over all gradients as one vector; a row's gradient is the sum over its
    occurrences.

    Parameters
    ----------
    gradients : the gradients of variables; None for a variable without a gradient
    clip_norm : the bound of the norm of all gradients
    layers : the layers that are trained together with the variables; their gradients are changed

    Returns
    -------
    The clipped gradients of variables, and the norm before clipping. If the norm is not finite, all
    gradients are NaN, and `step` refuses or skips them.

    Raises
    ------
    InvalidArgumentError : the call is within a tf.function, which would run it only once, when the
        function is traced; no layer is given; an object is no layer of a store; or clip_norm is
        below 0.
    """
    if tf.inside_function():
        raise InvalidArgumentError(
            "expected clip_by_global_norm() outside tf.function: return the gradients from the "
            "compiled function, and apply them after it"
        )
    if not layers or not all(isinstance(layer, StoreLayer) for layer in layers):
        raise InvalidArgumentError(f"expected layers of a store, found {layers!r}")
    dense = float(tf.linalg.global_norm(list(gradients)))
    norm = hypot(dense, *(layer.grad_norm() for layer in layers))
    factor = clip_factor(norm, clip_norm) if norm < float("inf") else nan
    for layer in layers:
        layer._steps.gradients.change(partial(multiplied, factor=factor))
    use_norm = tf.constant(norm, tf.float32)
    clipped, _ = tf.clip_by_global_norm(list(gradients), clip_norm, use_norm=use_norm)
    return clipped, norm

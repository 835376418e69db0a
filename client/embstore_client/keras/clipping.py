"""Clipping by the norm of all gradients, of variables and of rows, as `tf.clip_by_global_norm` does
it for variables.

Rows are no variables, so that an optimizer's `global_clipnorm` leaves them out, and clips within
compiled code, where it cannot see them.
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
    """Clip gradients of variables and of layers of a store together, between backward pass and
    steps, as `tf.clip_by_global_norm` clips gradients of variables.

    The norm is L2, over all of them as one vector; a row's gradient is the sum over its
    occurrences.

    Parameters
    ----------
    gradients : the gradients of variables; None: there is none
    clip_norm : the bound of the norm of all gradients
    layers : the layers that are trained with them; their gradients are changed

    Returns
    -------
    The gradients of variables, clipped, and the norm before. Where it is not finite, all gradients
    are NaN, and `step` refuses or skips them.

    Raises
    ------
    InvalidArgumentError : within a tf.function, which would do it once, when it is traced; no
        layers, or something else among them; clip_norm is below 0.
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

"""A step for each batch of `fit`: a callback, which runs in Python after the compiled step.

The callback works the same for compiled and uncompiled steps. If Keras executes several steps at
once (`steps_per_execution`), their gradients would become one update; this setting is refused when
training starts.
"""

from typing import Any

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.keras.layer import StoreLayer
from embstore_client.keras.scaling import LossScale


class StoreStep(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Calls `step` of some layers after every batch of `model.fit`.

    With a LossScaleOptimizer (`mixed_float16`), the dense part and the store's part are skipped
    together.
    """

    def __init__(self, *layers: StoreLayer, max_norm: float | None = None) -> None:
        """Keep the layers. Pass all store layers of the model that are trained. The step of each
        layer is a separate update.

        Parameters
        ----------
        max_norm : the bound of the norm of the gradients of each single layer, as in
            `StoreLayer.step`. Keras clips the dense part's gradients separately, by
            `global_clipnorm` of its optimizer, which does not see the gradients of rows

        Raises
        ------
        InvalidArgumentError : no layer is given, or an object is no layer of a store.
        """
        super().__init__()
        if not layers or not all(isinstance(layer, StoreLayer) for layer in layers):
            raise InvalidArgumentError(f"expected layers of a store, found {layers!r}")
        self._layers = layers
        self._max_norm = max_norm
        self._scale: LossScale | None = None  # None outside of `fit`

    def on_train_begin(self, logs: Any = None) -> None:
        """Check the optimizer, and discard the gradients of a batch that was interrupted.

        Raises
        ------
        InvalidArgumentError : `steps_per_execution` is not 1; or the model has no other trainable
            weights, so that Keras computes no gradients.
        The errors of `LossScale`.
        """
        if self.model.steps_per_execution != 1:
            raise InvalidArgumentError(
                f"expected steps_per_execution=1, found {self.model.steps_per_execution}"
            )
        if self.model.built and not self.model.trainable_weights:
            raise InvalidArgumentError(
                "expected a model with weights of its own: without, `fit` computes no gradients"
            )
        self._scale = LossScale(self.model.optimizer)
        for layer in self._layers:
            layer.end_loop()
            layer.clear_gradients()

    def on_train_end(self, logs: Any = None) -> None:
        """End the loops of `ahead_dataset`, even if an epoch was interrupted."""
        for layer in self._layers:
            layer.end_loop()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Call `step` of all layers. Raises the errors of `StoreLayer.step`."""
        assert self._scale is not None
        verdict = self._scale.verdict()
        for layer in self._layers:
            layer.step(verdict, max_norm=self._max_norm)

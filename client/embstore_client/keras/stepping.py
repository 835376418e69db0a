"""A step for each batch of `fit`: a callback, which runs in Python behind the compiled step.

It works the same for compiled and for other steps. A setting that hides steps from it is refused
where training begins: several steps in one execution, whose gradients would be one update.
"""

from typing import Any

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.keras.layer import StoreLayer
from embstore_client.keras.scaling import LossScale


class StoreStep(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Has some layers step behind every batch of `model.fit`.

    With a LossScaleOptimizer (`mixed_float16`), dense part and store are skipped together.
    """

    def __init__(self, *layers: StoreLayer, max_norm: float | None = None) -> None:
        """Give all layers of the model that are to be trained; each is an update of its own.

        Parameters
        ----------
        max_norm : bound of the norm of the gradients of each layer alone, as in `StoreLayer.step`:
            Keras clips the dense part's gradients, by `global_clipnorm` of its optimizer, where it
            sees no others

        Raises
        ------
        InvalidArgumentError : none, or one that is no layer of a store.
        """
        super().__init__()
        if not layers or not all(isinstance(layer, StoreLayer) for layer in layers):
            raise InvalidArgumentError(f"expected layers of a store, found {layers!r}")
        self._layers = layers
        self._max_norm = max_norm
        self._scale: LossScale | None = None  # None outside of `fit`

    def on_train_begin(self, logs: Any = None) -> None:
        """Look at the optimizer, and forget gradients of a batch that was broken off.

        Raises
        ------
        InvalidArgumentError : `steps_per_execution` is not 1; nothing else is trained, so that
            Keras computes no gradients; or an error of `LossScale`.
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
        """End the loops of `ahead_dataset`, also where an epoch was broken off."""
        for layer in self._layers:
            layer.end_loop()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Step; raises the errors of `StoreLayer.step`."""
        assert self._scale is not None
        verdict = self._scale.verdict()
        for layer in self._layers:
            layer.step(verdict, max_norm=self._max_norm)

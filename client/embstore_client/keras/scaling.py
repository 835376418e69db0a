"""The verdict of a LossScaleOptimizer on a step (`frameworks.scaling`).

The verdict is whether the dense part was skipped. Keras does not store it, but two public variables
show it. A skipped step halves `dynamic_scale`, and does not change `iterations`. A step that was
done adds 1 to `iterations`, and keeps the scale or doubles it. Any other change shows that there
was not exactly one step, and is refused. The gradients of a step have the scale that was valid
before the step.
"""

from functools import partial
from math import frexp
from typing import Any, NamedTuple

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.scaling import Verdict


class _State(NamedTuple):
    scale: float
    iterations: int


class LossScale:
    """The scale of an optimizer's loss, read again at every step."""

    def __init__(self, optimizer: Any) -> None:
        """Read the scale of the first step.

        Parameters
        ----------
        optimizer : a keras.optimizers.LossScaleOptimizer; for any other optimizer the scale is its
            `loss_scale_factor`, which does not change

        Raises
        ------
        InvalidArgumentError : the scale is no power of two, or the optimizer accumulates gradients.
        """
        self._optimizer = optimizer
        self._is_dynamic = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        inner = optimizer.inner_optimizer if self._is_dynamic else optimizer
        if inner.gradient_accumulation_steps is not None:
            raise InvalidArgumentError(
                "expected an optimizer without gradient_accumulation_steps: the store would be "
                "updated more often; accumulate in a loop of your own, and call step() after it"
            )
        self._before = self._state()
        if frexp(self._before.scale)[0] != 0.5:
            raise InvalidArgumentError(
                f"expected a loss scale that is a power of two, found {self._before.scale}"
            )

    def verdict(self) -> Verdict:
        """Return the verdict on the step that the optimizer has just done.

        Raises
        ------
        InvalidArgumentError : since the last verdict, the optimizer has done no step or several
            steps, or the program has set the optimizer's scale.
        """
        if not self._is_dynamic:
            return Verdict(self._before.scale)
        before, after = self._before, self._state()
        steps, growth = after.iterations - before.iterations, after.scale / before.scale
        if (steps, growth) not in ((0, 0.5), (1, 1.0), (1, 2.0)):
            raise InvalidArgumentError(
                f"expected one step of the optimizer since the last verdict, found {steps} and a "
                f"scale of {after.scale} after {before.scale}; make a new LossScale before each "
                "loop"
            )
        self._before = after
        return Verdict(before.scale, steps == 0, partial(self.lower, before.scale * 0.5))

    def lower(self, scale: float) -> None:
        """Continue with a lower scale."""
        self._optimizer.dynamic_scale.assign(scale)
        self._optimizer.step_counter.assign(0)
        self._before = self._state()

    def _state(self) -> _State:
        optimizer = self._optimizer
        if not self._is_dynamic:
            return _State(float(optimizer.loss_scale_factor or 1.0), 0)
        scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
        return _State(float(scale), int(optimizer.iterations))

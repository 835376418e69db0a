"""What a LossScaleOptimizer has found of a step, and what it must know of the store's part.

Keras multiplies the loss by a scale, so that small gradients are not lost in float16, and looks for
infinities when the optimizer steps. Where it finds one, the dense part is skipped, and so must the
store's be. Where it finds none, the store may still have an overflow of its own: it then skips its
part, and the scale is lowered.

Keras keeps no verdict, but two public variables show it: a step that was skipped halves
`dynamic_scale` and leaves `iterations`; one that was done adds 1 to `iterations`, and leaves the
scale or doubles it. Anything else was not one step, and is refused. The scale that gradients have
is the one before. It is a power of two, so that its reciprocal takes it off exactly.
"""

from math import frexp
from typing import Any, NamedTuple

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.errors import InvalidArgumentError


class _State(NamedTuple):
    scale: float
    iterations: int


class Verdict:
    """What was found of one step. Without a `LossScale`, nothing: all gradients must be finite."""

    def __init__(self, scale: float = 1.0, *, is_overflow: bool = False, of: Any = None) -> None:
        self.scale = scale
        """What gradients were multiplied by."""
        self.is_overflow = is_overflow
        """The dense part was skipped."""
        self._of = of  # None: no scale that can be lowered

    @property
    def on_nonfinite(self) -> Any:
        """What the store does with gradients that are not finite."""
        return "refuse" if self._of is None else "skip"

    def note_skipped(self) -> None:
        """Lower the scale: the store's gradients overflowed."""
        if self._of is not None:
            self._of.lower(self.scale * 0.5)


class LossScale:
    """The scale of an optimizer's loss, as steps go by."""

    def __init__(self, optimizer: Any) -> None:
        """Read the scale of the first step.

        Parameters
        ----------
        optimizer : a keras.optimizers.LossScaleOptimizer; of another one the `loss_scale_factor`,
            which does not change

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
                "updated more often; accumulate in a loop of your own, behind which step() is "
                "called"
            )
        self._before = self._state()
        if frexp(self._before.scale)[0] != 0.5:
            raise InvalidArgumentError(
                f"expected a loss scale that is a power of two, found {self._before.scale}"
            )

    def verdict(self) -> Verdict:
        """Return what was found of the step that the optimizer has just done.

        Raises
        ------
        InvalidArgumentError : it has done none since the last verdict, or several, or was set anew.
        """
        if not self._is_dynamic:
            return Verdict(self._before.scale)
        before, after = self._before, self._state()
        steps, growth = after.iterations - before.iterations, after.scale / before.scale
        if (steps, growth) not in ((0, 0.5), (1, 1.0), (1, 2.0)):
            raise InvalidArgumentError(
                f"expected one step of the optimizer since the last verdict, found {steps} and a "
                f"scale of {after.scale} after {before.scale}; make LossScale anew where a loop "
                "begins"
            )
        self._before = after
        return Verdict(before.scale, is_overflow=steps == 0, of=self)

    def lower(self, scale: float) -> None:
        """Go on with a lower scale."""
        self._optimizer.dynamic_scale.assign(scale)
        self._optimizer.step_counter.assign(0)
        self._before = self._state()

    def _state(self) -> _State:
        optimizer = self._optimizer
        if not self._is_dynamic:
            return _State(float(optimizer.loss_scale_factor or 1.0), 0)
        scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
        return _State(float(scale), int(optimizer.iterations))

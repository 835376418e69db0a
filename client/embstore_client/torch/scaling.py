"""What a GradScaler says of a step, and what it must know of the store's part.

A GradScaler multiplies the loss by a power of two, so that small gradients are not lost in float16,
and looks for infinities when the dense optimizer steps. Where it finds one, the dense part is
skipped, and so must the store's be. Where it finds none, the store may still have an overflow of
its own: it then skips its part, and the scaler is given that, so that it lowers its scale.

The scale's reciprocal is a power of two, so `gradient_scale` takes it off exactly.

Torch has no public way to ask for a verdict before `update`; `_per_optimizer_states` is what
`GradScaler` itself goes by, since it exists.
"""

from math import frexp
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError

_OWN = "embstore"
"""Marks what a module of a store has told a scaler: it is no verdict on the dense part."""


class Verdict:
    """What a scaler has found of the step at hand; None: there is none."""

    def __init__(self, scaler: Any) -> None:
        """Ask the scaler.

        Raises
        ------
        InvalidArgumentError : it has looked at no optimizer since its last `update`.
        """
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.is_overflow = False
        """The dense part was skipped."""
        self.scale = 1.0
        """What takes the scale off gradients."""
        if self._scaler is None:
            return
        scale = float(self._scaler.get_scale())
        if frexp(scale)[0] != 0.5:
            raise InvalidArgumentError(
                f"expected a scale that is a power of two, which leaves no trace, found {scale}: "
                "give GradScaler such init_scale, growth_factor and backoff_factor"
            )
        self.scale = 1.0 / scale
        states = self._scaler._per_optimizer_states.values()
        dense = [state for state in states if not state.get(_OWN)]
        found = [flag for state in dense for flag in state["found_inf_per_device"].values()]
        if not found:
            raise InvalidArgumentError(
                "expected scaler.step(optimizer) before step(scaler), and scaler.update() after it"
            )
        self.is_overflow = any(float(flag) for flag in found)

    @property
    def on_nonfinite(self) -> Any:
        """What the store does with gradients that are not finite."""
        return "refuse" if self._scaler is None else "skip"

    def note_skipped(self) -> None:
        """Have the scaler lower its scale at its `update`: the store's gradients overflowed."""
        if self._scaler is not None:
            state = self._scaler._per_optimizer_states[id(self)]
            device = self._scaler._scale.device
            state[_OWN] = True
            state["found_inf_per_device"] = {device: torch.ones((), device=device)}

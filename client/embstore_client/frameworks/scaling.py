"""The verdict of a scaler of losses on a step, and the overflow of the store's part.

The loss is multiplied by a power of two, so that small gradients are not lost in float16, and the
scaler looks for infinities when the dense optimizer steps. Where it finds one, the dense part is
skipped, and so must the store's be. Where it finds none, the store may still have an overflow of
its own: it then skips its part, and the scale is lowered.

The scale's reciprocal is a power of two, so `gradient_scale` takes it off exactly.
"""

from collections.abc import Callable
from typing import NamedTuple


class Verdict(NamedTuple):
    """The verdict on one step. Without a scaler all gradients must be finite."""

    scale: float = 1.0
    """The factor by which gradients were multiplied."""
    is_overflow: bool = False
    """The dense part was skipped."""
    lower: Callable[[], object] | None = None
    """Has the scaler lower its scale; None: no scaler can."""

"""A loss scaler's verdict on a step, and the overflow of the store's part.

The loss is multiplied by a power of two, so that small gradients are not lost in float16. The
scaler looks for infinities when the dense optimizer steps. If there is an infinity, the dense part
is skipped, and the store's part must be skipped too. If there is none, the gradients of the store's
rows may still overflow. In that case only the store's part is skipped, and the scale is lowered.

The scale's reciprocal is a power of two, so multiplying by it in `gradient_scale` is exact.
"""

from collections.abc import Callable
from typing import NamedTuple


class Verdict(NamedTuple):
    """The verdict on one step. Without a scaler all gradients must be finite."""

    scale: float = 1.0
    """The factor by which gradients were multiplied."""
    is_overflow: bool = False
    """Whether the dense part was skipped."""
    lower: Callable[[], object] | None = None
    """Makes the scaler lower its scale. None: there is no scaler that can."""

"""A GradScaler's verdict on a step (`frameworks.scaling`), and how the scaler is notified of an
overflow in the store's part.

Torch has no public function for a verdict before `update`. This module reads
`_per_optimizer_states`, which `GradScaler` has had since its first version.
"""

from collections.abc import Sequence
from functools import partial
from math import frexp
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.scaling import Verdict

_OWN = "embstore"
"""The key, in place of an optimizer, under which store modules notify a scaler of an overflow. The
entry is no verdict on the dense part."""


def verdict_of(scaler: Any) -> Verdict:
    """Return the verdict of a scaler on the current step. Without a scaler, the verdict is that all
    gradients must be finite.

    Raises
    ------
    InvalidArgumentError : the scaler has looked at no optimizer since its last `update`.
    """
    if scaler is None or not scaler.is_enabled():
        return Verdict()
    scale = float(scaler.get_scale())
    if frexp(scale)[0] != 0.5:
        raise scale_is_no_power(scale)
    dense = [state for whose, state in scaler._per_optimizer_states.items() if whose != _OWN]
    found = [flag for state in dense for flag in state["found_inf_per_device"].values()]
    if not found:
        raise InvalidArgumentError(
            "expected scaler.step(optimizer) before step(scaler), and scaler.update() after it"
        )
    is_overflow = any(float(flag) for flag in found)
    return Verdict(scale, is_overflow, partial(_note_overflow, scaler))


def scale_is_no_power(scale: float) -> InvalidArgumentError:
    """Return the error for a scale that is no power of two, and so cannot be divided out
    exactly."""
    return InvalidArgumentError(
        f"expected a scale that is a power of two, by which scaling is exact, found {scale}: give "
        "GradScaler powers of two as init_scale, growth_factor and backoff_factor"
    )


def scale_of(scaler: Any) -> float:
    """Return the factor by which gradients were multiplied; 1 without a scaler."""
    return 1.0 if scaler is None or not scaler.is_enabled() else float(scaler.get_scale())


def note_overflow_of_rows(scaler: Any, norms: Sequence[Any]) -> None:
    """If one of the norms is not finite, make a scaler skip the steps of optimizers, and lower its
    scale.

    Raises
    ------
    InvalidArgumentError : the scaler has unscaled no optimizer since its last `update`.
    """
    if scaler is None or not scaler.is_enabled():
        return
    found = [
        state["found_inf_per_device"]
        for whose, state in scaler._per_optimizer_states.items()
        if whose != _OWN and state["found_inf_per_device"]
    ]
    if not found:
        raise InvalidArgumentError(
            "expected scaler.unscale_(optimizer) before clip_grad_norm_ with its scaler"
        )
    for norm in norms:
        overflow = (~torch.isfinite(norm)).to(torch.float32)
        for by_device in found:
            for device, flag in by_device.items():
                by_device[device] = flag + overflow.to(device)


def _note_overflow(scaler: Any) -> None:
    """Make a scaler lower its scale at its next `update`."""
    device = scaler._scale.device
    overflow = {device: torch.ones((), device=device)}
    scaler._per_optimizer_states[_OWN]["found_inf_per_device"] = overflow

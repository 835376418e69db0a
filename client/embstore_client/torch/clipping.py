"""Clipping by the norm of all gradients, of the dense part and of rows, as
`torch.nn.utils.clip_grad_norm_` does it for the dense part.

Rows have no parameters, so that Torch's own function leaves them out. On a GPU that Torch shares
with the store the norm is computed there, of sums in float64, and the host does not wait for it.
The shares of several ranks are gathered on the host: their sums by key, once each.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.clipping import norm_of
from embstore_client.frameworks.gradients import multiplied
from embstore_client.frameworks.steps import Ranks, Steps
from embstore_client.torch.gpu import squares_on_device
from embstore_client.torch.ranks import gathered
from embstore_client.torch.scaling import note_overflow_of_rows, scale_of


def norm_of_rows(steps: Steps, ranks: Ranks) -> Any:
    """Return the norm of the gradients that are kept, or of the mean of the ranks', as a float64
    tensor (), on the GPU where they are there."""
    if ranks.world_size > 1:
        return torch.tensor(norm_of(gathered(ranks, steps.sums())), dtype=torch.float64)
    squares = [squares_on_device(parts) for parts in steps.gradients.parts().values()]
    if not squares or any(of_table is None for of_table in squares):
        return torch.tensor(norm_of([steps.sums()]), dtype=torch.float64)
    return torch.stack(squares).sum().sqrt()


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    *modules: Any,
    scaler: Any = None,
    group: Any = None,
    error_if_nonfinite: bool = False,
) -> Any:
    """Clip the gradients of parameters and of modules of a store together, between backward pass
    and steps, as `torch.nn.utils.clip_grad_norm_` clips gradients of parameters.

    The norm is L2, over all of them as one vector; a row's gradient is the sum over its
    occurrences. Gradients that come later are not clipped.

    Parameters
    ----------
    parameters : tensors, or one, of the dense part; their gradients are changed in place
    max_norm : the bound of the norm of all gradients; `float("inf")` changes none
    modules : the modules of a store that are trained with them
    scaler : a `torch.amp.GradScaler`, whose `unscale_(optimizer)` was called before: gradients of
        rows are taken as divided by its scale, which `step(scaler)` does. Where one of them is not
        finite, the scaler's steps are skipped as where a dense one is
    group : of torch.distributed, over all of whose ranks gradients of rows are averaged; None: the
        group of the modules' loops. Every rank calls it
    error_if_nonfinite : raise RuntimeError where the norm is not finite

    Returns
    -------
    The norm before, a float32 tensor ().

    Raises
    ------
    InvalidArgumentError : no modules, or something else among them; the scaler has unscaled no
        optimizer.
    """
    _check(modules)
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    scale = scale_of(scaler)
    norms = [module._norm_tensor(group) / scale for module in modules]
    note_overflow_of_rows(scaler, norms)
    dense = [tensor.grad for tensor in tensors if tensor.grad is not None]
    # The norm of a norm is itself. On the device of the first, as Torch's own.
    total = torch.nn.utils.get_total_norm(
        [*dense, *(norm.to(torch.float32) for norm in norms)], error_if_nonfinite=error_if_nonfinite
    )
    torch.nn.utils.clip_grads_with_norm_(tensors, max_norm, total)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for module in modules:
        module._steps.gradients.change(partial(_multiplied, factor))
    return total


def _multiplied(factor: Any, gradients: Any) -> Any:
    if isinstance(gradients, torch.Tensor):
        return gradients * factor.to(gradients.device)
    return multiplied(gradients, float(factor))


def _check(modules: Iterable[Any]) -> None:
    wrong = [module for module in modules if not hasattr(module, "_norm_tensor")]
    if wrong or not modules:
        raise InvalidArgumentError(
            "expected clip_grad_norm_(parameters, max_norm, module, ...) with modules of a store, "
            f"found {type(wrong[0]).__name__ if wrong else 'none'}: parameters alone are clipped "
            "by torch.nn.utils.clip_grad_norm_"
        )

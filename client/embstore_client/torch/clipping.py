"""Clips gradients of the dense part and of rows by their common norm, as
`torch.nn.utils.clip_grad_norm_` does for the dense part alone.

Rows are no parameters of Torch, so Torch's own function does not see their gradients. If Torch and
the store share a GPU, the norm is computed on the GPU, with float64 sums, and the host does not
wait for the norm. For several ranks, each rank's sums by key are gathered on the host.
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
    """Return the norm of the kept gradients, or of the mean of the ranks' gradients, as a float64
    tensor (), on the GPU if the gradients are there."""
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
    """Clip the gradients of parameters and of store modules together, between the backward pass and
    the steps, as `torch.nn.utils.clip_grad_norm_` clips gradients of parameters.

    The norm is L2, over all gradients as one vector; a row's gradient is the sum over its
    occurrences. Gradients of later backward passes are not clipped.

    Parameters
    ----------
    parameters : one or several tensors of the dense part; their gradients are changed in place
    max_norm : the bound of the norm of all gradients; `float("inf")` changes no gradient
    modules : the store modules that are trained together with the parameters
    scaler : a `torch.amp.GradScaler` whose `unscale_(optimizer)` was called before. The gradients
        of rows still have the scaler's scale then. This function divides them by the scale for the
        norm alone; `step(scaler)` later divides the gradients themselves. If a gradient of rows is
        not finite, the scaler's steps are skipped, as for a dense gradient that is not finite
    group : the group of torch.distributed whose ranks average their gradients of rows. None: the
        group of the modules' loops. Every rank calls this function
    error_if_nonfinite : raise RuntimeError if the norm is not finite

    Returns
    -------
    The norm before clipping, a float32 tensor ().

    Raises
    ------
    InvalidArgumentError : no module is given; an object is no store module; or the scaler has
        unscaled no optimizer.
    """
    _check(modules)
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    scale = scale_of(scaler)
    norms = [module._norm_tensor(group) / scale for module in modules]
    note_overflow_of_rows(scaler, norms)
    dense = [tensor.grad for tensor in tensors if tensor.grad is not None]
    # The norm of a single norm is that norm. The total is on the first gradient's device, as in
    # Torch's function.
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

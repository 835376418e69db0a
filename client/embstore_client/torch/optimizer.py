"""The tables of a module as an optimizer of Torch, for schedulers of learning rates.

Schedulers of Torch require a `torch.optim.Optimizer`, and set the rates of its groups.
`StoreOptimizer` has a group for each table, and its step is the module's step at the groups' rates.
Each group has an empty parameter, because Torch refuses groups without parameters.

**A GradScaler** looks at the gradients of an optimizer's parameters, multiplies them by the
reciprocal of its scale, and steps if all are finite. Here the first parameter has a gradient that
represents the gradients of all rows: 1, or infinity if their norm is not finite. The scaler
multiplies this 1 by a factor, by which the gradients of rows are multiplied when they are sent. If
the scaler does not step, the current step of `ahead` is skipped.
"""

from collections.abc import Callable
from functools import partial
from math import frexp, isfinite
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore.results import AcknowledgedUpdate
from embstore_client.torch.embedding import StoreModule
from embstore_client.torch.scaling import scale_is_no_power


class _Sign(torch.nn.Parameter):  # type: ignore[misc, unused-ignore]
    """A parameter whose gradient shows whether the gradients of rows are finite."""

    said: Any = None
    """The gradient, from the first read until the step or `zero_grad`; None at other times."""
    norm: Callable[[], float] | None = None
    """Returns the norm of the gradients of rows. None: this parameter is a copy, without rows."""

    @property
    def grad(self) -> Any:
        if self.said is None and self.norm is not None:
            self.said = torch.ones(1) if isfinite(self.norm()) else torch.full((1,), torch.inf)
        return self.said

    @grad.setter
    def grad(self, _: Any) -> None:
        self.said = None


class StoreOptimizer(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Steps a module with the learning rates of the groups, one group for each table.

    param_groups : one group for each table, {"name": table, "lr": rate}; schedulers or the user set
        the rate
    """

    def __init__(self, module: StoreModule) -> None:
        """Begin with the tables' present learning rates; the rates stored with the tables do not
        change.

        Raises
        ------
        InvalidArgumentError : `module` is no module of a store.
        """
        if not isinstance(module, StoreModule):
            raise InvalidArgumentError(
                f"expected a module of embstore.torch, found {type(module).__name__}: give the "
                "module of the store within it"
            )
        facts = module.store.table_facts()
        groups = [
            {"params": [torch.nn.Parameter(torch.empty(0))], "lr": facts[name].learning_rate}
            | {"name": name}
            for name in module.tables
        ]
        self._sign = _Sign(torch.empty(0))
        self._sign.norm = partial(_norm_of, module)
        groups[0]["params"] = [self._sign]
        super().__init__(groups, {})
        self._module = module

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Send the gradients that backward passes have left, as `step` of the module does.

        Parameters
        ----------
        closure : called first, to compute the loss and its gradients; `step` then returns the loss,
            as the optimizers of Torch do
        options : the options of the module's `step`, except the learning rate

        Raises
        ------
        The errors of the module's `step`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rates = {group["name"]: float(group["lr"]) for group in self.param_groups}
        scale = self._unscaled() * options.pop("gradient_scale", 1.0)
        done: AcknowledgedUpdate | None = self._module.step(
            learning_rate=rates, gradient_scale=scale, **options
        )
        self._sign.grad = None
        return done if closure is None else loss

    def _unscaled(self) -> float:
        """Return the factor by which a scaler has multiplied gradients, or 1 if no scaler has
        looked at them."""
        said = self._sign.said
        found = 1.0 if said is None else float(said)
        if isfinite(found) and frexp(found)[0] != 0.5:
            raise scale_is_no_power(1 / found)
        return found if isfinite(found) else 1.0  # the module's step reports infinite gradients

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients that backward passes have left, as the module's `zero_grad`
        does."""
        self._sign.grad = None
        self._module.zero_grad()


def _norm_of(module: StoreModule) -> float:
    """Return the norm of the gradients of rows. If the norm is not finite, a scaler does not step,
    so these gradients are marked as not to be sent."""
    norm = module.grad_norm()
    if not isfinite(norm):
        module._steps.give_up()
    return norm

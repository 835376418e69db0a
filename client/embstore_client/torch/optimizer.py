"""The tables of a module as an optimizer of Torch, for schedulers of learning rates.

Schedulers of Torch want a `torch.optim.Optimizer`, and set the rates of its groups. So there is one
whose groups are tables, and whose step is the module's, at their rates. It has an empty parameter
in each group, because Torch refuses groups without any.

**A GradScaler** looks at the gradients of an optimizer's parameters, multiplies them by the
reciprocal of its scale, and steps where all are finite. The first parameter has a gradient that
represents the gradients of all rows: 1, or infinity where their norm is not finite. The scaler
multiplies the 1 by a factor, by which the rows' gradients are multiplied when they are sent. Where
it does not step, a step of `ahead` is skipped.
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
    """A parameter whose gradient says whether the gradients of rows are finite."""

    said: Any = None
    """The gradient, once it has been read; until the step, or `zero_grad`."""
    norm: Callable[[], float] | None = None
    """The norm of the gradients of rows; None: for a copy, which has none."""

    @property
    def grad(self) -> Any:
        if self.said is None and self.norm is not None:
            self.said = torch.ones(1) if isfinite(self.norm()) else torch.full((1,), torch.inf)
        return self.said

    @grad.setter
    def grad(self, _: Any) -> None:
        self.said = None


class StoreOptimizer(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Has a module step at the learning rates of its groups, one for each table.

    param_groups : by table, {"name": of the table, "lr": its rate}; set by schedulers, or by you
    """

    def __init__(self, module: StoreModule) -> None:
        """Begin with the rates that the tables have now, which stay theirs.

        Raises
        ------
        InvalidArgumentError : it is no module of a store.
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
        closure : computes the loss and its gradients first; the loss is returned then, as by the
            optimizers of Torch
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
        """Return the factor by which a scaler has multiplied gradients, if one has looked at
        them."""
        said = self._sign.said
        found = 1.0 if said is None else float(said)
        if isfinite(found) and frexp(found)[0] != 0.5:
            raise scale_is_no_power(1 / found)
        return found if isfinite(found) else 1.0  # that they are not finite, the step says

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that backward passes have left, as the module's does."""
        self._sign.grad = None
        self._module.zero_grad()


def _norm_of(module: StoreModule) -> float:
    """Return the norm of the gradients of rows, which a scaler does not let be sent where it is not
    finite."""
    norm = module.grad_norm()
    if not isfinite(norm):
        module._steps.give_up()
    return norm

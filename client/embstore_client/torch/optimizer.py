"""The tables of a module as an optimizer of Torch, for what drives the rates of one.

Schedulers of Torch want a `torch.optim.Optimizer`, and set the rates of its groups. So there is one
whose groups are tables, and whose step is the module's, at their rates. It has an empty parameter
in each group, because Torch refuses groups without any.
"""

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore.results import AcknowledgedUpdate
from embstore_client.torch.embedding import StoreModule


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
        super().__init__(groups, {})
        self._module = module

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Send the gradients that backward passes have left, as `step` of the module does.

        Parameters
        ----------
        closure : computes the loss and its gradients first; the loss is returned then, as by the
            optimizers of Torch
        options : those of the module's `step`, but for the learning rate

        Raises
        ------
        What it raises.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rates = {group["name"]: float(group["lr"]) for group in self.param_groups}
        done: AcknowledgedUpdate | None = self._module.step(learning_rate=rates, **options)
        return done if closure is None else loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that backward passes have left, as the module's does."""
        self._module.zero_grad()

"""The tables of a module as an optimizer of Torch, for what drives the rates of one.

Schedulers of Torch want a `torch.optim.Optimizer`, and set the rates of its groups. So there is one
whose groups are tables, and whose step is the module's, at their rates. It has an empty parameter
in each group, because Torch refuses groups without any.
"""

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.results import AcknowledgedUpdate
from embstore_client.torch.embedding import StoreModule


class StoreOptimizer(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Has a module step at the learning rates of its groups, one for each table.

    param_groups : by table, {"name": of the table, "lr": its rate}; set by schedulers, or by you
    """

    def __init__(self, module: StoreModule) -> None:
        """Begin with the rates that the tables have now, which stay theirs."""
        facts = module.store.table_facts()
        groups = [
            {"params": [torch.nn.Parameter(torch.empty(0))], "lr": facts[name].learning_rate}
            | {"name": name}
            for name in module.tables
        ]
        super().__init__(groups, {})
        self._module = module

    def step(self, **options: Any) -> AcknowledgedUpdate | None:  # type: ignore[override, unused-ignore]
        """Send the gradients that backward passes have left, as `step` of the module does.

        Parameters
        ----------
        options : those of the module's `step`, but for the learning rate

        Raises
        ------
        What it raises.
        """
        rates = {group["name"]: float(group["lr"]) for group in self.param_groups}
        done: AcknowledgedUpdate | None = self._module.step(learning_rate=rates, **options)
        return done

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that backward passes have left, as the module's does."""
        self._module.zero_grad()

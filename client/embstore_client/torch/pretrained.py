"""Modules of tables that begin with rows from elsewhere (`frameworks.pretrained`)."""

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.config import Optimizer, Sgd
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.pretrained import begin_with

_OF_FROZEN = Sgd(0.01)
"""The optimizer of a frozen table that is created without an optimizer. It has no state, so the
table takes the least memory."""


def module_of(
    kind: Any, store: Store, name: str, weights: Any, optimizer: Optimizer | None, **module: Any
) -> Any:
    """Return a module of one table, made by `kind`, whose table begins with given rows.

    Parameters
    ----------
    weights : (rows, dim) tensor
    module : arguments of `kind`, including `trainable`

    Raises
    ------
    InvalidArgumentError : weights have a wrong shape; or a table to be trained has no optimizer.
    """
    if not isinstance(weights, torch.Tensor) or weights.dim() != 2:
        found = tuple(getattr(weights, "shape", ())) or type(weights).__name__
        raise InvalidArgumentError(
            f"table {name!r}: expected weights to be a tensor of shape (rows, dim), found {found}"
        )
    if optimizer is None and module["trainable"]:
        raise InvalidArgumentError(
            f"table {name!r}: expected an optimizer with freeze=False, found none: give one, or "
            "freeze=True"
        )
    count, dim = weights.shape
    options = {"rows": count, "dim": dim, "optimizer": optimizer or _OF_FROZEN} | module
    made = kind(store, name, **options)
    values = weights.detach()
    begin_with(
        store.table(name),
        count,
        lambda part: values[part].to("cpu", torch.float32).contiguous().numpy(),
    )
    return made

"""The activations of all features of one forward, from the rows of its keys."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.arrays import Rows
from embstore_client.frameworks.gradients import KeptGradients, Looked, Number
from embstore_client.frameworks.occurrences import places
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import Ids
from embstore_client.torch.features import Occurrences
from embstore_client.torch.pooling import Places, activations

Given = Mapping[str, Occurrences]
"""What one forward is given: the ids of every feature."""


def activations_of(
    tables: Mapping[str, Ids],
    given: Given,
    found: Mapping[str, Found],
    *,
    gradients: KeptGradients | None,
    dtype: Any,
) -> dict[str, Any]:
    """Return the activations of every feature, in the order of the tables.

    Parameters
    ----------
    found : the rows of `keys_by_table(tables, given)`
    gradients : where backward passes leave theirs; None: nowhere, nothing requires one
    dtype : of activations; None: as they are
    """
    forward = 0 if gradients is None else gradients.next_forward()
    rows_of = {name: _tensor(of_table.rows) for name, of_table in found.items()}
    table_of = {feature: table for table in tables.values() for feature in table.features}
    result: dict[str, Any] = {}
    for feature, of, place in places(tables, given):
        table = table_of[feature]
        rows, inverse = rows_of[table.name], found[table.name].inverse
        keep = _keep(gradients, (forward, len(result)), table, of)
        of_ids = None if inverse is None else inverse[place]
        output = _activation(table, of, rows[place] if inverse is None else rows, of_ids, keep)
        result[feature] = output if dtype is None else output.to(dtype)
    return result


def _activation(
    table: Ids, of: Occurrences, rows: Any, inverse: Any, keep: Callable[[Any], None] | None
) -> Any:
    if inverse is not None:
        inverse = torch.from_numpy(inverse.astype(np.int64)).to(of.device)
    offsets = None if of.offsets is None else torch.from_numpy(of.offsets).to(of.device)
    weights = None if of.weights is None else of.weights.to(of.device)
    output = activations(rows.to(of.device), Places(inverse, offsets, _mode(table)), weights, keep)
    return output if of.offsets is not None else output.reshape(*of.shape, table.dim)


def _keep(
    gradients: KeptGradients | None, number: Number, table: Ids, of: Occurrences
) -> Callable[[Any], None] | None:
    """Return what takes the gradient of a feature's output."""
    if gradients is None or not torch.is_grad_enabled():
        return None
    factors = None
    if of.weights is not None:
        factors = np.array(of.weights.detach().cpu().numpy(), np.float32)
    looked = Looked(number, table.name, of.keys, of.offsets, _mode(table), factors)
    return lambda gradient: gradients.take(
        looked, gradient.detach().to("cpu", torch.float32).numpy()
    )


def _tensor(rows: Rows) -> Any:
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())


def _mode(table: Ids) -> str:
    return getattr(table, "mode", "none")

"""The activations of all features of one forward, from the rows of its keys."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.arrays import Rows
from embstore_client.frameworks.gradients import KeptGradients, Number
from embstore_client.frameworks.occurrences import places
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import Ids
from embstore_client.torch.features import Given
from embstore_client.torch.pooling import Places, activations


def activations_of(
    tables: Mapping[str, Ids],
    given: Mapping[str, Given],
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
    result: dict[str, Any] = {}
    for feature, own, place in places(tables, given):
        rows, inverse = rows_of[own.of.table], found[own.of.table].inverse
        keep = _keep(gradients, (forward, len(result)), own)
        of_ids = None if inverse is None else inverse[place]
        output = _activation(own, rows[place] if inverse is None else rows, of_ids, keep)
        result[feature] = output if dtype is None else output.to(dtype)
    return result


def _activation(own: Given, rows: Any, inverse: Any, keep: Callable[[Any], None] | None) -> Any:
    of, weights, device = own
    if inverse is not None:
        inverse = torch.from_numpy(inverse.astype(np.int64)).to(device)
    offsets = None if of.offsets is None else torch.from_numpy(of.offsets).to(device)
    at = Places(inverse, offsets, of.mode)
    output = activations(rows.to(device), at, None if weights is None else weights.to(device), keep)
    return output if offsets is not None else output.reshape(*of.shape, rows.shape[1])


def _keep(
    gradients: KeptGradients | None, number: Number, own: Given
) -> Callable[[Any], None] | None:
    """Return what takes the gradient of a feature's output."""
    if gradients is None or not torch.is_grad_enabled():
        return None
    of = own.of
    if own.weights is not None:
        of = of._replace(weights=np.array(own.weights.detach().cpu().numpy(), np.float32))
    return lambda gradient: gradients.take(
        number, of, gradient.detach().to("cpu", torch.float32).numpy()
    )


def _tensor(rows: Rows) -> Any:
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())

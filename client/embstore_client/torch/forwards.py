"""All features of one forward: their keys by table, and their activations.

The keys of a table are those of its features, one feature after the other in the order of the
table; so are the rows of its ids (`Found.inverse`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.arrays import Keys, Rows
from embstore_client.frameworks.gradients import KeptGradients, Looked, Number
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import Ids
from embstore_client.torch.features import Occurrences
from embstore_client.torch.pooling import Places, activations

Given = Mapping[str, Occurrences]
"""What one forward is given: the ids of every feature."""


def keys_by_table(tables: Mapping[str, Ids], forwards: Iterable[Given]) -> dict[str, Keys]:
    """Return the keys of all features of some forwards, by table, repeated or not."""
    parts: dict[str, list[Keys]] = {name: [] for name in tables}
    for given in forwards:
        for name, table in tables.items():
            parts[name] += [given[feature].keys for feature in table.features]
    return {name: p[0] if len(p) == 1 else np.concatenate(p) for name, p in parts.items()}


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
    found : the rows of `keys_by_table(tables, [given])`
    gradients : where backward passes leave theirs; None: nowhere, nothing requires one
    dtype : of activations; None: as they are
    """
    forward = 0 if gradients is None else gradients.next_forward()
    result: dict[str, Any] = {}
    for table in tables.values():
        rows, inverse = _tensor(found[table.name].rows), found[table.name].inverse
        begin = 0
        for feature in table.features:
            of = given[feature]
            end = begin + len(of.keys)
            keep = _keep(gradients, (forward, len(result)), table, of)
            of_ids = None if inverse is None else inverse[begin:end]
            of_rows = rows[begin:end] if inverse is None else rows
            output = _activation(table, of, of_rows, of_ids, keep)
            result[feature] = output if dtype is None else output.to(dtype)
            begin = end
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

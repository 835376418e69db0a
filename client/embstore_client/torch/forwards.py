"""The rows of one forward, and the activations of all its features."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.handles.store import Store
from embstore_client.frameworks.gradients import KeptGradients, Number
from embstore_client.frameworks.occurrences import places
from embstore_client.frameworks.rows import AnnouncedStep, Found, Positions, from_store
from embstore_client.frameworks.tables import Ids
from embstore_client.torch.announced import Place
from embstore_client.torch.features import FeatureIds
from embstore_client.torch.gpu import (
    DeviceOccurrences,
    Shown,
    device_of,
    keys_on_gpu,
    keys_on_host,
    rows_on,
)
from embstore_client.torch.pooling import Places, activations, shares


class LookedUp(NamedTuple):
    """The rows of one forward."""

    found: Mapping[str, Found]
    """The rows, by table."""
    places: Mapping[str, Place]
    """The positions of the ids' rows in `found`, by feature."""
    is_there: bool
    """Whether the rows are on the ids' GPU; if so, gradients can stay on the GPU, too."""


def look_up(
    store: Store,
    step: AnnouncedStep | None,
    tables: Mapping[str, Ids],
    given: Mapping[str, FeatureIds],
    *,
    admit: bool,
) -> LookedUp:
    """Return the rows of a forward, from the current step, or from the store if `step` is None."""
    device = device_of(store, given)
    if device is None or (step is not None and not step.reaches_device):
        keys: Any = keys_on_host(given)
        found = from_store(store, keys, admit=admit) if step is None else step.rows(keys)
        return LookedUp(found, _places(given, found, keys), is_there=False)
    make = rows_on(device)
    if step is not None and all(own.place.named is not None for own in given.values()):
        step.given.use()
        return LookedUp(step.announced(make), _prepared(given), is_there=True)
    if step is not None:
        keys = keys_on_host(given)
        found = step.rows(keys, make)
    else:
        keys = keys_on_gpu(given)
        rows = make([*tables], [(len(keys[name]), table.dim) for name, table in tables.items()])
        shown: dict[str, Any] = {name: Shown(of_table) for name, of_table in keys.items()}
        found = from_store(store, shown, admit=admit, out=dict(zip(tables, rows, strict=True)))
    return LookedUp(found, _places(given, found, keys), is_there=True)


def _prepared(given: Mapping[str, FeatureIds]) -> dict[str, Place]:
    """Return the places of announced ids. If ids got weights after the announcement, and so need
    offsets, the offsets are added."""
    return {
        feature: own.place
        if own.of.offsets is None or own.place.offsets is not None
        else replace(own.place, offsets=torch.arange(len(own.keys) + 1, device=own.device))
        for feature, own in given.items()
    }


def _places(
    given: Mapping[str, FeatureIds],
    found: Mapping[str, Found],
    keys: Mapping[str, Any],
) -> dict[str, Place]:
    """Return the position of each id's row among the rows of `keys`, the forward's keys by
    table."""
    result = {}
    for feature, own, at in places(given):
        of, inverse = own.of, found[own.of.table].inverse
        offsets = None if of.offsets is None else torch.from_numpy(of.offsets).to(own.device)
        if inverse is None:
            result[feature] = Place(keys[of.table][at], None, offsets)
        else:
            there = torch.from_numpy(inverse[at].astype(np.int64)).to(own.device)
            result[feature] = Place(Positions(inverse[at]), there, offsets)
    return result


def activations_of(
    given: Mapping[str, FeatureIds],
    looked_up: LookedUp,
    *,
    gradients: KeptGradients | None,
    dtype: Any,
) -> dict[str, Any]:
    """Return the activations of every lookup by its name, in the order of the lookups.

    Parameters
    ----------
    gradients : keeps the gradients of backward passes. None: no output requires a gradient
    dtype : dtype of activations. None: they are not converted
    """
    forward = 0 if gradients is None else gradients.next_forward()
    rows_of = {name: _tensor(of_table.rows) for name, of_table in looked_up.found.items()}
    result: dict[str, Any] = {}
    for feature, own, at in places(given):
        rows, place = rows_of[own.table], looked_up.places[feature]
        own = _as_sum(own, place)
        number = forward, len(result)
        keep = _keep(gradients, number, own, place, is_there=looked_up.is_there)
        output = _activation(own, rows[at] if place.inverse is None else rows, place, keep)
        result[feature] = output if dtype is None else output.to(dtype)
    return result


def _as_sum(own: FeatureIds, place: Place) -> FeatureIds:
    """Return the ids, with their weights moved to the ids' device. The weights of a mean are
    divided by the sum of their bag's weights, so that the weighted sum of the rows is the mean."""
    if own.weights is None:
        return own
    weights = own.weights.to(own.device)
    if own.of.mode == "sum":
        return own._replace(weights=weights)
    return own._replace(of=own.of._replace(mode="sum"), weights=shares(weights, place.offsets))


def _activation(
    own: FeatureIds, rows: Any, place: Place, keep: Callable[[Any], None] | None
) -> Any:
    of = own.of
    at = Places(place.inverse, place.offsets, of.mode)
    output = activations(rows.to(own.device), at, own.weights, keep)
    if own.nested is not None:
        return torch.nested.nested_tensor_from_jagged(output, own.nested)
    return output.reshape(*of.shape, rows.shape[1])


def _keep(
    gradients: KeptGradients | None,
    number: Number,
    own: FeatureIds,
    place: Place,
    *,
    is_there: bool,
) -> Callable[[Any], None] | None:
    """Return a function that keeps the gradient of a feature's output."""
    if gradients is None or not torch.is_grad_enabled() or own.of.table in gradients.frozen:
        return None
    weights = None if own.weights is None else own.weights.detach()
    if is_there:
        there: Any = DeviceOccurrences.of(own, place, weights)
        return lambda gradient: gradients.take(number, there, gradient.detach().to(torch.float32))
    named: Any = place.named
    of = own.of._replace(keys=named)
    if weights is not None:
        of = of._replace(weights=np.array(weights.cpu().numpy(), np.float32))
    return lambda gradient: gradients.take(
        number, of, gradient.detach().to("cpu", torch.float32).numpy()
    )


def _tensor(rows: Any) -> Any:
    if isinstance(rows, Shown):
        return rows.here()
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())

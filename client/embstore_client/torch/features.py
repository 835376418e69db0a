"""Ids in the shapes of Torch, taken apart into keys and bags.

    (bags, length)          bags of one length                       bags, and ids
    (n,) and offsets        bag b is ids[offsets[b]:offsets[b + 1]]  bags
    any shape               a row for each                           ids
    keys(), values() and    features one after the other in one      both
    offsets() or lengths()  tensor: TorchRec's KeyedJaggedTensor

What is returned of tensors of the host is a copy: a trainer may use its tensors again before
`step`. Ids on a GPU stay there until it is known where they are needed.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.occurrences import Occurrences, bounds_of
from embstore_client.frameworks.tables import Bag, Ids, by_feature
from embstore_client.torch.announced import Place, once

_ID_DTYPES = (torch.int32, torch.int64)


class Given(NamedTuple):
    """The ids of one feature in one forward, and what stays where they were."""

    of: Occurrences
    """Without the weights. Keys on a GPU are a tensor there, the caller's."""
    weights: Any
    """(n,) tensor of the ids' weights, or None."""
    device: Any
    """Where activations go."""
    place: Place
    """Of ids that were announced."""

    @property
    def keys(self) -> Any:
        """(n,), one after the other."""
        return self.of.keys


def bags_of(
    table: Any,
    ids: Any,
    offsets: Any = None,
    weights: Any = None,
    *,
    has_last: bool = False,
    what: str,
) -> Given:
    """Return the bags of a feature of a `Bag`; `what` names it in errors.

    Parameters
    ----------
    ids : (bags, length), or (n,) with offsets
    offsets : (bags,), where each begins; with `has_last` one more, which is n
    weights : as many as ids, with mode "sum"

    Raises
    ------
    InvalidArgumentError : any of that does not hold.
    """
    ids = _integers(ids, f"{what}: ids")
    given = once(_bags, table, ids, offsets, has_last, what)
    if weights is None:
        return given
    if table.mode != "sum":
        raise InvalidArgumentError(f'{what}: per_sample_weights go with mode "sum" only')
    if not isinstance(weights, torch.Tensor) or weights.shape != ids.shape:
        raise InvalidArgumentError(
            f"{what}: expected per_sample_weights of shape {tuple(ids.shape)}, found "
            f"{tuple(np.shape(weights))}"
        )
    if weights.dtype not in (torch.float32, torch.float64):
        raise InvalidArgumentError(
            f"{what}: expected per_sample_weights of dtype float32 or float64, found "
            f"{weights.dtype}"
        )
    of = given.of
    if of.offsets is None:
        of = of._replace(offsets=np.arange(ids.numel() + 1))
    return given._replace(of=of, weights=weights.reshape(-1))


def _bags(table: Any, ids: Any, offsets: Any, has_last: bool, what: str) -> Given:
    """Return bags as they are without weights: a sum of one id is its row."""
    plain = _ids(table, ids)
    if offsets is None and ids.dim() == 2 and ids.shape[1] == 1:
        return plain._replace(of=plain.of._replace(shape=(len(ids),)))
    if offsets is not None:
        offsets = _array(_integers(offsets, f"{what}: offsets"))
    bounds = bounds_of(tuple(ids.shape), offsets, what, has_last=has_last)
    of = plain.of._replace(mode=table.mode, shape=(len(bounds) - 1,), is_single=False)
    if not (np.diff(bounds) == 1).all():
        of = of._replace(offsets=bounds)
    return plain._replace(of=of)


def ids_of(table: Ids, ids: Any, *, what: str) -> Given:
    """Return the ids of a feature that is not pooled, of any shape."""
    return once(_ids, table, _integers(ids, f"{what}: ids"))


def _ids(table: Ids, ids: Any) -> Given:
    keys: Any = ids.detach().reshape(-1) if ids.device.type == "cuda" else _array(ids)
    of = Occurrences(table.name, keys, None, None, "sum", tuple(ids.shape), is_single=True)
    return Given(of, None, ids.device, Place())


def given_of(tables: Mapping[str, Ids], features: Any) -> dict[str, Given]:
    """Return the ids of every feature from a mapping or a KeyedJaggedTensor.

    Raises
    ------
    InvalidArgumentError : it is neither; a feature is missing, or has another shape or dtype.
    """
    found = features if isinstance(features, Mapping) else dict(_of_jagged(features))
    given = {}
    for name, table, value in by_feature(tables, found):
        what = f"feature {name!r}"
        if isinstance(table, Bag):
            given[name] = bags_of(table, *_arguments(value), what=what)
        else:
            given[name] = ids_of(table, value if found is features else value[0], what=what)
    return given


def _of_jagged(jagged: Any) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    """Yield the features of a KeyedJaggedTensor, each with its ids, offsets and weights.

    Raises
    ------
    InvalidArgumentError : it is none.
    """
    if not all(callable(getattr(jagged, part, None)) for part in ("keys", "values")):
        raise InvalidArgumentError(
            "expected features to be a mapping, or to have keys(), values() and offsets(), found "
            f"{type(jagged).__name__}"
        )
    names, values = list(jagged.keys()), jagged.values()
    weights = jagged.weights_or_none() if hasattr(jagged, "weights_or_none") else None
    for name, (own, begins) in zip(names, _parts(jagged, len(names)), strict=False):
        yield name, (values[own], begins, None if weights is None else weights[own])


def _arguments(value: Any) -> tuple[Any, ...]:
    """Return ids, offsets and weights of a feature; of ids alone that are (n,), bags of one."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, torch.Tensor) and value.dim() == 1:
        return (value[:, None],)
    return (value,)


def _parts(jagged: Any, features: int) -> list[tuple[slice, Any]]:
    """Return which ids each feature has, and where its bags begin among them, on the host."""
    strides = None
    if callable(getattr(jagged, "stride_per_key", None)):
        strides = tuple(jagged.stride_per_key())
    if callable(getattr(jagged, "offsets", None)):
        return once(_parted, _integers(jagged.offsets(), "offsets()"), True, features, strides)
    return once(_parted, _integers(jagged.lengths(), "lengths()"), False, features, strides)


def _parted(
    given: Any, are_offsets: bool, features: int, strides: tuple[int, ...] | None
) -> list[tuple[slice, Any]]:
    """Return the same of the offsets, or the lengths, of all bags.

    strides : how many bags each feature has; None: all have as many
    """
    bounds = _array(given)
    if not are_offsets:
        bounds = np.concatenate([[0], np.cumsum(bounds)]).astype(np.int64)
    if strides is None:
        count, left = divmod(len(bounds) - 1, max(features, 1))
        if left:
            raise InvalidArgumentError(
                f"expected as many bags of each of {features} features, found {len(bounds) - 1}"
            )
        strides = (count,) * features
    parts = []
    for begin, end in pairwise(accumulate(strides, initial=0)):
        first, last = bounds[begin], bounds[end]
        own = slice(int(first), int(last))
        parts.append((own, torch.from_numpy(bounds[begin:end] - first)))
    return parts


def _integers(values: Any, what: str) -> Any:
    if not isinstance(values, torch.Tensor) or values.dtype not in _ID_DTYPES:
        found = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgumentError(f"{what}: expected a tensor of int32 or int64, found {found}")
    return values


def _array(values: Any) -> NDArray[np.int64]:
    """Return a copy as (n,) int64 on the host."""
    return np.array(values.detach().cpu().numpy(), np.int64).reshape(-1)

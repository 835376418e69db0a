"""Ids in the shapes of Torch, taken apart into keys and bags.

    (bags, length)          bags of one length                       bags, and ids
    (n,) and offsets        bag b is ids[offsets[b]:offsets[b + 1]]  bags
    any shape               a row for each                           ids
    keys(), values() and    features one after the other in one      both
    offsets() or lengths()  tensor: TorchRec's KeyedJaggedTensor

What is returned is the host's, and a copy: a trainer may use its tensors again before `step`.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.occurrences import Occurrences, bounds_of
from embstore_client.frameworks.tables import Bag, Ids, by_feature

_ID_DTYPES = (torch.int32, torch.int64)


class Given(NamedTuple):
    """The ids of one feature in one forward, and what stays where they were."""

    of: Occurrences
    """Without the weights."""
    weights: Any
    """(n,) tensor of the ids' weights, or None."""
    device: Any
    """Where activations go."""

    @property
    def keys(self) -> Keys:
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
    if offsets is not None:
        offsets = _array(_integers(offsets, f"{what}: offsets"))
    elif ids.dim() == 2 and ids.shape[1] == 1 and weights is None:
        return ids_of(table, ids.reshape(-1), what=what)
    bounds = bounds_of(tuple(ids.shape), offsets, what, has_last=has_last)
    if weights is not None:
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
        weights = weights.reshape(-1)
    is_plain = weights is None and (np.diff(bounds) == 1).all()  # a sum of one is itself
    offsets, shape = None if is_plain else bounds, (len(bounds) - 1,)
    of = Occurrences(table.name, _array(ids), offsets, None, table.mode, shape, is_single=False)
    return Given(of, weights, ids.device)


def ids_of(table: Ids, ids: Any, *, what: str) -> Given:
    """Return the ids of a feature that is not pooled, of any shape."""
    ids = _integers(ids, f"{what}: ids")
    shape = tuple(ids.shape)
    of = Occurrences(table.name, _array(ids), None, None, "sum", shape, is_single=True)
    return Given(of, None, ids.device)


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
    bounds = _bounds(jagged)
    weights = jagged.weights_or_none() if hasattr(jagged, "weights_or_none") else None
    ends = _ends(jagged, len(names), len(bounds) - 1)
    for name, begin, end in zip(names, [0, *ends], ends, strict=False):
        first, last = bounds[begin], bounds[end]
        own = slice(int(first), int(last))
        begins = torch.from_numpy(bounds[begin:end] - first)
        yield name, (values[own], begins, None if weights is None else weights[own])


def _arguments(value: Any) -> tuple[Any, ...]:
    """Return ids, offsets and weights of a feature; of ids alone that are (n,), bags of one."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, torch.Tensor) and value.dim() == 1:
        return (value[:, None],)
    return (value,)


def _bounds(jagged: Any) -> NDArray[np.int64]:
    if callable(getattr(jagged, "offsets", None)):
        return _array(_integers(jagged.offsets(), "offsets()"))
    lengths = _array(_integers(jagged.lengths(), "lengths()"))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _ends(jagged: Any, features: int, bags: int) -> list[int]:
    """Return where the bags of each feature end: by its own number, if the tensor knows it, else
    all have as many."""
    if callable(getattr(jagged, "stride_per_key", None)):
        return list(accumulate(jagged.stride_per_key()))
    count, left = divmod(bags, max(features, 1))
    if left:
        raise InvalidArgumentError(
            f"expected as many bags of each of {features} features, found {bags}"
        )
    return [count * (index + 1) for index in range(features)]


def _integers(values: Any, what: str) -> Any:
    if not isinstance(values, torch.Tensor) or values.dtype not in _ID_DTYPES:
        found = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgumentError(f"{what}: expected a tensor of int32 or int64, found {found}")
    return values


def _array(values: Any) -> NDArray[np.int64]:
    """Return a copy as (n,) int64 on the host."""
    return np.array(values.detach().cpu().numpy(), np.int64).reshape(-1)

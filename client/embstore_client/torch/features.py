"""Ids in the shapes of Torch, split into keys and bags. The last column names the features that may
have a shape: those of a `Bag` (bags), or of an `Ids` (ids).

    (bags, length)          bags of one length                       bags, and ids
    (n,) and offsets        bag b is ids[offsets[b]:offsets[b + 1]]  bags
    any shape               a row for each id                        ids
    (bags, any length)      Torch's nested tensors, layout=jagged    both
    keys(), values() and    features one after the other in one      both
    offsets() or lengths()  tensor: TorchRec's KeyedJaggedTensor

Ids are tensors of keys. If a table hashes ids, they can be of other kinds, such as lists of text,
which are converted to tensors of keys first (`keys_for`). If such ids are on a GPU, the host waits
for them.

The results for tensors in host memory are copies: a trainer may use its tensors again before
`step`. Ids on a GPU stay there until a forward determines on which device they are needed. Each GPU
is asked once, for all features, whether any id is padding (`given_of`, `given_one`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.occurrences import Occurrences, bounds_of
from embstore_client.frameworks.padding import is_id, offsets_without
from embstore_client.frameworks.tables import Bag, FeatureLookup, Ids, by_feature, refused_ids
from embstore_client.torch import gpu
from embstore_client.torch.announced import Place, Unpadded, once

_ID_DTYPES = (torch.int32, torch.int64)


class FeatureIds(NamedTuple):
    """The ids of one feature in one forward; tensors stay on their devices."""

    of: Occurrences
    """The ids without weights. If the keys are on a GPU, they are a tensor that belongs to the
    caller."""
    weights: Any
    """(n,) tensor of the ids' weights, or None."""
    device: Any
    """The device of the activations."""
    place: Place
    """The positions of the rows of announced ids."""
    padding_idx: int | None
    nested: Any = None
    """The offsets of a nested tensor whose ids are not pooled, (bags + 1,); otherwise None."""

    @property
    def table(self) -> str:
        """The table's name."""
        return self.of.table

    @property
    def keys(self) -> Any:
        """The keys of all ids, (n,), in order."""
        return self.of.keys


def bags_of(
    table: Any,
    ids: Any,
    offsets: Any = None,
    weights: Any = None,
    *,
    has_last: bool = False,
    what: str,
) -> FeatureIds:
    """Return the ids of a `Bag` feature as bags, with padding; errors name the feature by `what`.

    Parameters
    ----------
    ids : (bags, length), or (n,) with offsets
    offsets : (bags,), the index at which each bag begins; with `has_last` one more entry, which is
        n
    weights : a weight for each id

    Raises
    ------
    InvalidArgumentError : an argument is wrong.
    """
    ids = _keys(ids, f"{what}: ids")
    if ids.is_nested:
        if offsets is not None:
            raise InvalidArgumentError(
                f"{what}: expected no offsets with a nested tensor, which has its own"
            )
        ids, offsets = _flat(ids, what)
        has_last = True
        weights = weights if weights is None or not weights.is_nested else _flat(weights, what)[0]
    given = once(_bags, table, ids, offsets, has_last, what)
    if weights is None:
        return given
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


def _bags(table: Any, ids: Any, offsets: Any, has_last: bool, what: str) -> FeatureIds:
    """Return bags without weights. A bag of one id needs no pooling: its sum is the row."""
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


def ids_of(table: Ids, ids: Any, *, what: str) -> FeatureIds:
    """Return the ids of a feature that is not pooled, of any shape, with padding."""
    ids = _keys(ids, f"{what}: ids")
    if not ids.is_nested:
        return once(_ids, table, ids)
    values, offsets = _flat(ids, what)
    return once(_ids, table, values)._replace(nested=offsets)


def _ids(table: Ids, ids: Any) -> FeatureIds:
    keys: Any = ids.detach().reshape(-1) if ids.device.type == "cuda" else _array(ids)
    of = Occurrences(table.name, keys, None, None, "sum", tuple(ids.shape), is_single=True)
    return FeatureIds(of, None, ids.device, Place(), table.padding_key)


def _flat(nested: Any, what: str) -> tuple[Any, Any]:
    """Return the values of a nested tensor of two dimensions, and its offsets, (bags + 1,)."""
    if nested.layout != torch.jagged or nested.dim() != 2:
        raise InvalidArgumentError(
            f"{what}: expected a nested tensor of two dimensions and layout=torch.jagged, found "
            f"{nested.dim()} and {nested.layout}"
        )
    packed = nested.contiguous()  # a narrowed nested tensor also has values that are in no bag
    return packed.values(), packed.offsets()


def keys_for(table: Ids, ids: Any) -> Any:
    """Return ids as a tensor of keys. They are hashed if their table hashes ids; for sparse keys,
    uint64 becomes int64; other ids are unchanged."""
    if table.hashes:
        return once(_hashed, table, ids)
    is_unsigned = getattr(ids, "dtype", None) == torch.uint64 and not ids.is_nested
    return once(_bits, ids) if table.is_sparse and is_unsigned else ids


def _bits(ids: Any) -> Any:
    return ids.view(torch.int64)


def _hashed(table: Ids, ids: Any) -> Any:
    if not isinstance(ids, torch.Tensor):
        return torch.from_numpy(table.hashed(ids))
    if ids.is_nested:
        values, offsets = _flat(ids, f"table {table.name!r}")
        return torch.nested.nested_tensor_from_jagged(_hashed(table, values), offsets)
    return gpu.there(table.hashed(ids.detach().cpu().numpy()), ids.device)


def given_one(table: Ids, given: FeatureIds) -> dict[str, FeatureIds]:
    """Return the ids of a module of one table, without padding."""
    return _without_padding({table.name: given})


def given_of(lookups: Sequence[FeatureLookup], features: Any) -> dict[str, FeatureIds]:
    """Return the ids of every lookup from a mapping or a KeyedJaggedTensor, without padding.

    Raises
    ------
    InvalidArgumentError : `features` is neither a mapping nor a KeyedJaggedTensor; or a feature is
        missing, or has a wrong shape or dtype.
    """
    found = features if isinstance(features, Mapping) else dict(_of_jagged(features))
    given = {}
    for name, table, value in by_feature(lookups, found):
        what = f"feature {name!r}"
        has_parts = isinstance(value, tuple) and (isinstance(table, Bag) or found is not features)
        ids, *rest = value if has_parts else (value,)
        ids = keys_for(table, ids)
        if isinstance(table, Bag):
            given[name] = bags_of(table, *_arguments(ids, *rest), what=what)
        else:
            given[name] = ids_of(table, ids, what=what)
    return _without_padding(given)


def _without_padding(given: Mapping[str, FeatureIds]) -> dict[str, FeatureIds]:
    _look_for_padding([own for own in given.values() if own.place.unpadded is None])
    return {name: _unpadded(own) for name, own in given.items()}


def _look_for_padding(every: Sequence[FeatureIds]) -> None:
    """Find out which of these ids are padding. If no id on a GPU is padding, the host waits once
    per GPU."""
    on_gpus: dict[Any, list[tuple[FeatureIds, Any]]] = {}
    for own in every:
        are_ids = is_id(own.keys, own.padding_idx)
        if isinstance(are_ids, torch.Tensor):
            on_gpus.setdefault(own.device, []).append((own, are_ids))
        else:
            own.place.unpadded = _those(own.keys, are_ids, are_ids)
    for of_device in on_gpus.values():
        whole = torch.cat([marks for _, marks in of_device])
        is_clean = whole.all().cpu()
        found = np.ones(len(whole), bool) if is_clean else whole.cpu().numpy()
        ends = np.cumsum([len(marks) for _, marks in of_device])
        for (own, marks), are_ids in zip(of_device, np.split(found, ends[:-1]), strict=True):
            own.place.unpadded = _those(own.keys, marks, are_ids)


def _those(keys: Any, marks: Any, are_ids: NDArray[np.bool_]) -> Unpadded:
    """Return the keys that are not padding. Two equal masks (n,) mark these keys: `marks` on the
    device of `keys`, and `are_ids` on the host."""
    return Unpadded(keys) if are_ids.all() else Unpadded(keys[marks], are_ids)


def _unpadded(own: FeatureIds) -> FeatureIds:
    """Return the ids of a feature without their padding."""
    keys, are_ids = own.place.unpadded
    if are_ids is None:
        return own
    of = own.of._replace(keys=keys, offsets=offsets_without(own.of.offsets, are_ids))
    weights = own.weights
    if weights is not None:
        # The marks of ids on a GPU are computed again here, because the loader's thread may use
        # another stream.
        marks = is_id(own.keys, own.padding_idx)
        marks = marks if isinstance(marks, torch.Tensor) else torch.from_numpy(marks)
        index = torch.nonzero_static(marks, size=len(keys))[:, 0]  # so the host does not wait
        weights = weights.index_select(0, index.to(weights.device))
    return own._replace(of=of, weights=weights)


def _of_jagged(jagged: Any) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    """Yield, for each feature of a KeyedJaggedTensor, its name, and a tuple of its ids, offsets and
    weights.

    Raises
    ------
    InvalidArgumentError : `jagged` is no KeyedJaggedTensor.
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


def _arguments(ids: Any, *rest: Any) -> tuple[Any, ...]:
    """Return ids, offsets and weights of a feature. Ids (n,) without offsets are bags of one id."""
    is_one_each = not rest and isinstance(ids, torch.Tensor) and ids.dim() == 1
    return (ids[:, None],) if is_one_each else (ids, *rest)


def _parts(jagged: Any, features: int) -> list[tuple[slice, Any]]:
    """Return for each feature the range of its ids, and a host array of the positions in this range
    at which the feature's bags begin."""
    strides = None
    if callable(getattr(jagged, "stride_per_key", None)):
        strides = tuple(jagged.stride_per_key())
    if callable(getattr(jagged, "offsets", None)):
        return once(_parted, _integers(jagged.offsets(), "offsets()"), True, features, strides)
    return once(_parted, _integers(jagged.lengths(), "lengths()"), False, features, strides)


def _parted(
    given: Any, are_offsets: bool, features: int, strides: tuple[int, ...] | None
) -> list[tuple[slice, Any]]:
    """Return the result of `_parts` from the offsets, or the lengths, of all bags.

    strides : the number of bags of each feature. None: all features have the same number
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


def _keys(ids: Any, what: str) -> Any:
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _ID_DTYPES:
        raise refused_ids(what, "a tensor of int32 or int64", ids)
    return ids


def _integers(values: Any, what: str) -> Any:
    if not isinstance(values, torch.Tensor) or values.dtype not in _ID_DTYPES:
        found = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgumentError(f"{what}: expected a tensor of int32 or int64, found {found}")
    return values


def _array(values: Any) -> NDArray[np.int64]:
    """Return a copy in host memory, (n,) int64."""
    return np.array(values.detach().cpu().numpy(), np.int64).reshape(-1)

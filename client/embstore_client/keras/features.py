"""Ids in the shapes of TensorFlow, split into ids and bags. The functions work eagerly and in
graphs. The last column names the features that may have a shape: those of a `Bag` (bags), or of an
`Ids` (ids).

(bags, length)          bags of one length                bags, and ids
(bags,)                 one id per bag                    bags, and ids
RaggedTensor, rank 2    bags of any length, also empty    bags
any shape               a row for each id                 ids

Padding is recognized when a graph runs (`forward`). If a table hashes ids, they can be tensors of
tf.string, or objects that are no tensors; a graph hashes them when it runs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.tables import Bag, FeatureLookup, Ids, by_feature, refused_ids


class FeatureIds(NamedTuple):
    """The ids of one feature in one call. All parts are tensors; unused parts are empty."""

    keys: Any
    """The ids, (n,) int64, in order."""
    offsets: Any
    """(bags + 1,) int64, from 0 to n, if the rows are pooled."""
    weights: Any
    """(n,) float32, if ids are weighted."""
    is_pooled: bool
    is_weighted: bool
    shape: Any
    """The shape of the activations, without dim, as a tensor of integers."""
    static_shape: Any
    """The shape of the activations without dim, as far as it is known when a graph is made."""

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """The parts whose values are known when the graph runs."""
        return self.keys, self.offsets, self.weights


def given_of(lookups: Sequence[FeatureLookup], features: Any) -> dict[str, FeatureIds]:
    """Return the ids of every lookup from a mapping; the mapping may contain other features too.

    Raises
    ------
    InvalidArgumentError : `features` is no mapping; or a feature is missing, or is refused by
        `bags_of`.
    """
    given = {}
    for name, table, value in by_feature(lookups, features):
        what = f"feature {name!r}"
        if isinstance(table, Bag):
            arguments = value if isinstance(value, tuple) else (value,)
            given[name] = bags_of(table, *arguments, what=what)
        else:
            given[name] = ids_of(table, value, what=what)
    return given


def bags_of(table: Ids, ids: Any, weights: Any = None, *, what: str) -> FeatureIds:
    """Return the ids of a `Bag` feature as bags; errors name the feature by `what`.

    Raises
    ------
    InvalidArgumentError : ids are not int32 or int64, or have a wrong shape; weights are no floats;
        or there is not one weight for each id.
    """
    ids = _checked(_keys(table, ids), what)
    if isinstance(ids, tf.RaggedTensor):
        if ids.shape.rank != 2 or ids.ragged_rank != 1:
            raise InvalidArgumentError(
                f"{what}: expected a RaggedTensor of shape (bags, None), found {ids.shape}"
            )
        flat, offsets, count = ids.values, tf.cast(ids.row_splits, tf.int64), ids.nrows()
        is_single = False
    else:
        if ids.shape.rank not in (1, 2):
            raise InvalidArgumentError(
                f"{what}: expected ids of shape (bags, length) or (bags,), found {ids.shape}"
            )
        flat, count = tf.reshape(ids, [-1]), tf.shape(ids, tf.int64)[0]
        length = 1 if ids.shape.rank == 1 else tf.shape(ids, tf.int64)[1]
        offsets = tf.range(count + 1, dtype=tf.int64) * length
        is_single = ids.shape.rank == 1 or ids.shape[1] == 1
    weights = None if weights is None else _weights_of(weights, ids, what)
    return FeatureIds(
        tf.cast(flat, tf.int64),
        offsets,
        tf.zeros([0]) if weights is None else weights,
        is_pooled=weights is not None or not is_single,  # a bag of one id is its own sum and mean
        is_weighted=weights is not None,
        shape=tf.reshape(count, [1]),
        static_shape=ids.shape[:1],
    )


def ids_of(table: Ids, ids: Any, *, what: str) -> FeatureIds:
    """Return the ids of a feature that is not pooled, of any shape."""
    ids = _checked(_keys(table, ids), what)
    if isinstance(ids, tf.RaggedTensor):
        raise InvalidArgumentError(
            f"{what}: expected a dense tensor; a RaggedTensor is for bags, which are pooled"
        )
    return FeatureIds(
        tf.cast(tf.reshape(ids, [-1]), tf.int64),
        tf.zeros([0], tf.int64),
        tf.zeros([0]),
        is_pooled=False,
        is_weighted=False,
        shape=tf.shape(ids, tf.int64),
        static_shape=ids.shape,
    )


def _keys(table: Ids, ids: Any) -> Any:
    """Return ids as int64 if they are hashed, or if they are uint64 ids of sparse keys; return
    other ids unchanged."""
    if table.hashes:
        return _hashed(table, ids)
    return _bits(ids) if table.is_sparse and getattr(ids, "dtype", None) == "uint64" else ids


def _bits(ids: Any) -> Any:
    """Return ids of uint64 as int64 with the same bits."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(_bits(ids.flat_values))
    return tf.bitcast(ids, tf.int64)


def _hashed(table: Ids, ids: Any) -> Any:
    """Return hashed ids as a tensor of keys, in the shape of the ids."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(_hashed(table, ids.flat_values))
    if not tf.is_tensor(ids):
        return tf.convert_to_tensor(table.hashed(ids))
    keys = tf.numpy_function(table.hashed, [ids], tf.int64)
    keys.set_shape(ids.shape)
    return keys


def _checked(ids: Any, what: str) -> Any:
    if hasattr(ids, "__array__") and not tf.is_tensor(ids):
        ids = tf.convert_to_tensor(ids)
    if not tf.is_tensor(ids) or ids.dtype not in (tf.int32, tf.int64):
        raise refused_ids(what, "ids of int32 or int64", ids)
    if isinstance(ids, tf.SparseTensor) or ids.shape.rank is None:
        raise InvalidArgumentError(
            f"{what}: expected a dense or ragged tensor of known rank, found {ids}"
        )
    return ids


def _weights_of(weights: Any, ids: Any, what: str) -> Any:
    """Return weights as (n,) float32, by operations through which their gradient passes."""
    if hasattr(weights, "__array__") and not tf.is_tensor(weights):
        weights = tf.convert_to_tensor(weights)
    if not tf.is_tensor(weights) or not weights.dtype.is_floating:
        found = getattr(weights, "dtype", type(weights).__name__)
        raise InvalidArgumentError(f"{what}: expected weights of a float dtype, found {found}")
    is_ragged = isinstance(ids, tf.RaggedTensor)
    if isinstance(weights, tf.RaggedTensor) != is_ragged or not ids.shape.is_compatible_with(
        weights.shape
    ):
        raise InvalidArgumentError(
            f"{what}: expected weights of the shape of the ids, {ids.shape}, found {weights.shape}"
        )
    flat = weights.values if is_ragged else tf.reshape(weights, [-1])
    return tf.cast(flat, tf.float32)

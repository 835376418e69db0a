"""The layers: one table or several, bags or ids.

EmbeddingBag             one table, bags        ids, and weights of ids
Embedding                one table, ids         arguments of keras.layers.Embedding
EmbeddingBagCollection   tables, bags and ids   a mapping of features
EmbeddingCollection      tables, ids            a mapping of features
"""

from typing import Any

import keras  # type: ignore[import-not-found, import-untyped, unused-ignore]

from embstore.config import Initializer, Optimizer
from embstore.handles.store import Store
from embstore_client.frameworks.tables import Bag, BagMode, IdKind, Ids
from embstore_client.keras.features import FeatureIds, bags_of, given_of, ids_of
from embstore_client.keras.layer import StoreLayer

_serializable = keras.saving.register_keras_serializable(package="embstore")


@_serializable  # type: ignore[untyped-decorator, unused-ignore]
class EmbeddingBag(StoreLayer):
    """Bags of one table of a store."""

    _kinds = (Bag,)

    def __init__(
        self,
        store: Store,
        table: str,
        *,
        dim: int,
        rows: int | None = None,
        optimizer: Optimizer,
        mode: BagMode = "mean",
        initializer: Initializer | None = None,
        seed: int | None = None,
        padding_idx: int | str | None = None,
        ids: IdKind = "keys",
        **layer: Any,
    ) -> None:
        """Create the table if it does not exist.

        Parameters
        ----------
        table : the table's name in the store
        mode : "mean", or "sum"
        rows : ids are below this number. None: keys are sparse, and any int64 is an id
        initializer, seed, ids : as in `Bag`
        padding_idx : an id that is left out of bags, in addition to -1
        layer : name, dtype and trainable of a Keras layer; activations have its compute dtype
        """
        described = Bag(
            table,
            dim=dim,
            rows=rows,
            features=[table],
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            padding_idx=padding_idx,
            mode=mode,
            ids=ids,
        )
        super().__init__(store, [described], **layer)

    def call(self, ids: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Return the pooled rows of bags, (bags, dim); an empty bag gets zeros.

        Parameters
        ----------
        ids : (bags, length) int32 or int64; (bags,), one id per bag; or a RaggedTensor. With
            ids="hash" also tf.string, and any other ids that `embstore.hash_ids` accepts
        weights : floats, in the shape of the ids; they can require a gradient. A mean is then the
            weighted sum divided by the sum of the bag's weights
        training : False: rows are not admitted to the cache, and no gradient is kept
        """
        (output,) = self._activations(self._given(ids, weights), training).values()
        return output

    def _given(self, *arguments: Any) -> dict[str, FeatureIds]:
        ((name, table),) = self.tables.items()
        return {table.features[0]: bags_of(table, *arguments, what=f"table {name!r}")}


@_serializable  # type: ignore[untyped-decorator, unused-ignore]
class Embedding(StoreLayer):
    """Rows of one table of a store."""

    _kinds = (Ids,)

    def __init__(
        self,
        store: Store,
        table: str,
        *,
        dim: int,
        rows: int | None = None,
        optimizer: Optimizer,
        initializer: Initializer | None = None,
        seed: int | None = None,
        padding_idx: int | str | None = None,
        ids: IdKind = "keys",
        **layer: Any,
    ) -> None:
        """Create the table if it does not exist.

        Parameters
        ----------
        table : the table's name in the store
        rows : ids are below this number. None: keys are sparse, and any int64 is an id
        initializer, seed, ids : as in `Ids`
        padding_idx : an id whose output is zeros and whose row is not trained, in addition to -1
        layer : name, dtype and trainable of a Keras layer; activations have its compute dtype
        """
        described = Ids(
            table,
            dim=dim,
            rows=rows,
            features=[table],
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            padding_idx=padding_idx,
            ids=ids,
        )
        super().__init__(store, [described], **layer)

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Return a row for each id, (*, dim). Ids are int32 or int64 of any shape; with ids="hash"
        also tf.string, and any other ids that `embstore.hash_ids` accepts."""
        (output,) = self._activations(self._given(ids), training).values()
        return output

    def _given(self, *arguments: Any) -> dict[str, FeatureIds]:
        ((name, table),) = self.tables.items()
        return {table.features[0]: ids_of(table, *arguments, what=f"table {name!r}")}


class Collection(StoreLayer):
    """Several tables, by feature; each call and each step is one call to the store."""

    def call(self, features: Any, training: bool | None = None) -> dict[str, Any]:
        """Return {feature: its activations}, in the tables' order. A feature of a `Bag` has pooled
        rows, (bags, dim); a feature of an `Ids` has a row for each id, (*, dim). The activations of
        a feature that is in several tables are named `feature@table`.

        Parameters
        ----------
        features : a mapping with the ids of each feature. For a `Bag`, they are ids in the form
            that `EmbeddingBag` accepts, or a tuple of ids and weights. For `Ids`, ids have any
            shape. Other features are ignored.
        """
        return self._activations(self._given(features), training)

    def _given(self, *features: Any) -> dict[str, FeatureIds]:
        return given_of(self.lookups, *features)


@_serializable  # type: ignore[untyped-decorator, unused-ignore]
class EmbeddingBagCollection(Collection):
    """Bags of some tables, and rows of other tables, by feature."""

    _kinds = (Bag, Ids)


@_serializable  # type: ignore[untyped-decorator, unused-ignore]
class EmbeddingCollection(Collection):
    """Rows of several tables, by feature."""

    _kinds = (Ids,)

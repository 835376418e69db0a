"""The modules: one table or several, bags or ids.

EmbeddingBag             one table, bags     arguments of torch.nn.EmbeddingBag
Embedding                one table, ids      arguments of torch.nn.Embedding
EmbeddingBagCollection   tables, bags        a mapping of features, or a KeyedJaggedTensor
EmbeddingCollection      tables, ids         likewise
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.config import Initializer, Optimizer
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.tables import Bag, BagMode, Ids, by_feature, by_name
from embstore_client.torch.embedding import StoreModule
from embstore_client.torch.features import Occurrences, arguments_of, bags_of, ids_of, of_jagged
from embstore_client.torch.forwards import Given


class EmbeddingBag(StoreModule):
    """Bags of one table of a store, in the arguments of `torch.nn.EmbeddingBag`."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        dim: int,
        rows: int,
        optimizer: Optimizer,
        mode: BagMode = "sum",
        initializer: Initializer | None = None,
        seed: int | None = None,
        include_last_offset: bool = False,
        dtype: Any = None,
    ) -> None:
        """Make the table, unless it is there.

        Parameters
        ----------
        mode : "sum" or "mean"
        initializer, seed : as in `Bag`
        include_last_offset : offsets have one more element, the number of ids
        dtype : of activations; None: float32, or that of per-sample weights
        """
        table = Bag(
            name,
            dim=dim,
            rows=rows,
            features=[name],
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            mode=mode,
        )
        super().__init__(store, by_name([table], Bag), dtype)
        self.include_last_offset = include_last_offset

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return the pooled rows of bags, (bags, dim); those of an empty bag are zeros.

        Parameters
        ----------
        input : (bags, length) int32 or int64 ids; or (n,), with offsets
        offsets : (bags,), where each bag begins
        per_sample_weights : float32 or float64, as many as ids, with mode "sum"; they may require
            a gradient
        """
        return next(
            iter(self._activations(self._given(input, offsets, per_sample_weights)).values())
        )

    def _given(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Given:
        ((name, table),) = self.tables.items()
        arguments = input, offsets, per_sample_weights
        return {name: _bags(table, f"table {name!r}", arguments, self.include_last_offset)}


class Embedding(StoreModule):
    """Rows of one table of a store, in the arguments of `torch.nn.Embedding`."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        dim: int,
        rows: int,
        optimizer: Optimizer,
        initializer: Initializer | None = None,
        seed: int | None = None,
        dtype: Any = None,
    ) -> None:
        """Make the table, unless it is there.

        Parameters
        ----------
        initializer, seed : as in `Ids`
        dtype : of activations; None: float32
        """
        table = Ids(
            name,
            dim=dim,
            rows=rows,
            features=[name],
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
        )
        super().__init__(store, by_name([table], Ids), dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, input: Any) -> Any:
        """Return a row for each id, (*, dim), of int32 or int64 ids of any shape."""
        return next(iter(self._activations(self._given(input)).values()))

    def _given(self, input: Any) -> Given:
        (name,) = self.tables
        return {name: ids_of(input, what=f"table {name!r}")}


class EmbeddingBagCollection(StoreModule):
    """Bags of several tables, by feature; one call to the store for each forward and step."""

    def __init__(self, store: Store, tables: Sequence[Bag], *, dtype: Any = None) -> None:
        """Make the tables that are not there.

        Parameters
        ----------
        dtype : of activations; None: float32, or that of per-sample weights
        """
        super().__init__(store, by_name(tables, Bag), dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, features: Any) -> dict[str, Any]:
        """Return the pooled rows of each feature, {feature: (bags, dim)}, in the tables' order.

        Parameters
        ----------
        features : a mapping with the ids of each feature: (bags, length); (bags,), one id a bag; or
            a tuple of the arguments of `EmbeddingBag.forward`. Or a KeyedJaggedTensor: what has
            `keys()`, `values()` and `offsets()` or `lengths()`. Other features may be in it too.
        """
        return self._activations(self._given(features))

    def _given(self, features: Any) -> Given:
        return {
            name: _bags(table, f"feature {name!r}", arguments)
            for name, table, arguments in by_feature(self.tables, arguments_of(features))
        }


class EmbeddingCollection(StoreModule):
    """Rows of several tables, by feature; one call to the store for each forward and step."""

    def __init__(self, store: Store, tables: Sequence[Ids], *, dtype: Any = None) -> None:
        """Make the tables that are not there.

        Parameters
        ----------
        dtype : of activations; None: float32
        """
        super().__init__(store, by_name(tables, Ids), dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, features: Any) -> dict[str, Any]:
        """Return a row for each id, {feature: (*, dim)}, in the tables' order.

        Parameters
        ----------
        features : a mapping with the ids of each feature, of any shape; or a KeyedJaggedTensor, of
            which those of a feature are (n,)
        """
        return self._activations(self._given(features))

    def _given(self, features: Any) -> Given:
        if not isinstance(features, Mapping):
            features = {name: ids for name, (ids, _, _) in of_jagged(features)}
        return {
            name: ids_of(ids, what=f"feature {name!r}")
            for name, _, ids in by_feature(self.tables, features)
        }


def _bags(table: Any, what: str, arguments: tuple[Any, ...], has_last: bool = False) -> Occurrences:
    given = bags_of(*arguments, has_last=has_last, what=what)
    if given.weights is not None and table.mode != "sum":
        raise InvalidArgumentError(f'{what}: per_sample_weights go with mode "sum" only')
    return given

"""The modules: one table or several, bags or ids.

EmbeddingBag             one table, bags        arguments of torch.nn.EmbeddingBag
Embedding                one table, ids         arguments of torch.nn.Embedding
EmbeddingBagCollection   tables, bags and ids   a mapping of features, or a KeyedJaggedTensor
EmbeddingCollection      tables, ids            likewise
"""

from typing import Any, Self

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.config import Initializer, Optimizer
from embstore.handles.store import Store
from embstore_client.frameworks.tables import Bag, BagMode, IdKind, Ids
from embstore_client.torch.embedding import StoreModule
from embstore_client.torch.features import (
    FeatureIds,
    bags_of,
    given_of,
    given_one,
    ids_of,
    keys_for,
)
from embstore_client.torch.pretrained import module_of


class OneTable(StoreModule):
    """A module of one table, which is called as the modules of `torch.nn` are."""

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says where rows are, for code that looks for Torch's attributes."""
        if name == "weight":
            (table,) = self.tables
            raise AttributeError(
                f"{type(self).__name__} has no weight: its rows are in the store: "
                f"store.table({table!r}).lookup(ids) reads them, and .assign(ids, rows) sets "
                "them; for tied weights, call the module with the ids of all rows"
            )
        return super().__getattr__(name)

    @classmethod
    def from_pretrained(
        cls,
        store: Store,
        name: str,
        weights: Any,
        *,
        freeze: bool = True,
        optimizer: Optimizer | None = None,
        **module: Any,
    ) -> Self:
        """Return a module whose table begins with these rows, as the modules of `torch.nn` do.

        A table that was never trained gets them, where its rows are others. One that was keeps its
        rows, and a warning says so: a trainer that is started again goes on.

        Parameters
        ----------
        weights : (rows, dim) tensor of any float dtype; rows are float32
        freeze : do not train it, until `requires_grad_()`
        optimizer : None: `Sgd(0.01)`, with `freeze` only
        module : other arguments of the class; `rows`, where there are more than of the weights, or
            None for sparse keys: row i of the weights belongs to id i; `Table.assign` sets others

        Raises
        ------
        InvalidArgumentError : weights of another shape; no optimizer, and `freeze` is False.
        The errors of the class.
        """
        module["trainable"] = not freeze
        made: Self = module_of(cls, store, name, weights, optimizer, **module)
        return made


class EmbeddingBag(OneTable):
    """Bags of one table of a store, in the arguments of `torch.nn.EmbeddingBag`."""

    _kinds = (Bag,)

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        dim: int,
        rows: int | None = None,
        optimizer: Optimizer,
        mode: BagMode = "mean",
        initializer: Initializer | None = None,
        seed: int | None = None,
        include_last_offset: bool = False,
        padding_idx: int | str | None = None,
        trainable: bool = True,
        ids: IdKind = "keys",
        dtype: Any = None,
    ) -> None:
        """Make the table, unless it is there.

        Parameters
        ----------
        mode : "mean", or "sum"
        rows : ids are below; None: any int64 is one, and the table's keys are sparse
        initializer, seed, trainable, ids : as in `Bag`
        padding_idx : an id that is left out of its bag, as -1 always is
        include_last_offset : offsets have one more element, the number of ids
        dtype : of activations; None: float32, or the dtype of per-sample weights
        """
        table = Bag(
            name,
            dim=dim,
            rows=rows,
            features=[name],
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            padding_idx=padding_idx,
            mode=mode,
            trainable=trainable,
            ids=ids,
        )
        super().__init__(store, [table], dtype=dtype)
        self.include_last_offset = include_last_offset

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return the pooled rows of bags, (bags, dim); an empty bag gets zeros.

        Parameters
        ----------
        input : (bags, length) int32 or int64 ids, also nested (layout=torch.jagged); or (n,), with
            offsets. With ids="hash" ids of any kind, as lists of text
        offsets : (bags,), where each bag begins
        per_sample_weights : float32 or float64, as many as ids; they may require a gradient. A mean
            is then the weighted sum divided by the sum of the bag's weights
        """
        (output,) = self._activations(input, offsets, per_sample_weights).values()
        return output

    def _given(self, *arguments: Any) -> dict[str, FeatureIds]:
        ((name, table),) = self.tables.items()
        has_last = self.include_last_offset
        ids, *rest = arguments
        ids = keys_for(table, ids)
        bags = bags_of(table, ids, *rest, has_last=has_last, what=f"table {name!r}")
        return given_one(table, bags)


class Embedding(OneTable):
    """Rows of one table of a store, in the arguments of `torch.nn.Embedding`."""

    _kinds = (Ids,)

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        dim: int,
        rows: int | None = None,
        optimizer: Optimizer,
        initializer: Initializer | None = None,
        seed: int | None = None,
        padding_idx: int | str | None = None,
        trainable: bool = True,
        ids: IdKind = "keys",
        dtype: Any = None,
    ) -> None:
        """Make the table, unless it is there.

        Parameters
        ----------
        rows : ids are below; None: any int64 is one, and the table's keys are sparse
        initializer, seed, trainable, ids : as in `Ids`
        padding_idx : an id whose output is zeros, and which is not trained, as -1 always is
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
            padding_idx=padding_idx,
            trainable=trainable,
            ids=ids,
        )
        super().__init__(store, [table], dtype=dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, input: Any) -> Any:
        """Return a row for each id, (*, dim), of int32 or int64 ids of any shape, also nested
        (layout=torch.jagged); with ids="hash" of any kind, as lists of text."""
        (output,) = self._activations(input).values()
        return output

    def _given(self, *arguments: Any) -> dict[str, FeatureIds]:
        ((name, table),) = self.tables.items()
        (ids,) = arguments
        return given_one(table, ids_of(table, keys_for(table, ids), what=f"table {name!r}"))


class Collection(StoreModule):
    """Several tables, by feature; one call to the store for each forward and step."""

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, features: Any) -> dict[str, Any]:
        """Return the activations of each feature, in the tables' order: for a `Bag` its pooled
        rows, {feature: (bags, dim)}; for `Ids` a row for each id, {feature: (*, dim)}. Activations
        of a feature that is in several tables are called `feature@table`.

        Parameters
        ----------
        features : a mapping with the ids of each feature. For a `Bag`: (bags, length); (bags,), one
            id a bag; or a tuple of the arguments of `EmbeddingBag.forward`. For `Ids`: any shape.
            Or a KeyedJaggedTensor: an object with `keys()`, `values()` and `offsets()` or
            `lengths()`; for `Ids` the ids of a feature are (n,). Other features may be in it too.
        """
        return self._activations(features)

    def _given(self, *features: Any) -> dict[str, FeatureIds]:
        return given_of(self.lookups, *features)


class EmbeddingBagCollection(Collection):
    """Bags of several tables, and rows of others, by feature."""

    _kinds = (Bag, Ids)


class EmbeddingCollection(Collection):
    """Rows of several tables, by feature."""

    _kinds = (Ids,)

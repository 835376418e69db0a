"""The modules: one table or several, bags or ids.

EmbeddingBag             one table, bags        arguments of torch.nn.EmbeddingBag
Embedding                one table, ids         arguments of torch.nn.Embedding
EmbeddingBagCollection   tables, bags and ids   a mapping of features, or a KeyedJaggedTensor
EmbeddingCollection      tables, ids            as EmbeddingBagCollection
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
    """A module of one table, which is called like the modules of `torch.nn`."""

    def __getattr__(self, name: str) -> Any:
        """Raise an error; for `weight`, which Torch's modules have, the error says where the rows
        are."""
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

        If the table was never trained, those of its rows that differ from the given rows are
        replaced. A trained table keeps its rows, with a warning, so a trainer that is started again
        continues from the trained rows.

        Parameters
        ----------
        weights : (rows, dim) tensor of any float dtype; the table's rows are float32
        freeze : whether the table is not trained until `requires_grad_()` is called
        optimizer : the table's optimizer. None: `Sgd(0.01)`, allowed only with `freeze`
        module : other arguments of the class. Give `rows` if the table has more rows than the
            weights, or None for sparse keys. Row i of the weights belongs to id i; `Table.assign`
            sets other rows

        Raises
        ------
        InvalidArgumentError : weights have a wrong shape; or there is no optimizer, and `freeze` is
            False.
        The errors of the class.
        """
        module["trainable"] = not freeze
        made: Self = module_of(cls, store, name, weights, optimizer, **module)
        return made


class EmbeddingBag(OneTable):
    """Bags of one table of a store, with the arguments of `torch.nn.EmbeddingBag`."""

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
        """Create the table if it does not exist.

        Parameters
        ----------
        mode : "mean", or "sum"
        rows : ids are below this number. None: keys are sparse, and any int64 is an id
        initializer, seed, trainable, ids : as in `Bag`
        padding_idx : an id that is left out of bags, in addition to -1
        include_last_offset : offsets have one more element, the number of ids
        dtype : dtype of activations. None: float32, or the dtype of per-sample weights
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
            offsets. With ids="hash" ids of any kind, such as lists of text
        offsets : (bags,), the index at which each bag begins
        per_sample_weights : a float32 or float64 weight for each id; it may require a gradient. A
            mean is then the weighted sum divided by the sum of the bag's weights
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
    """Rows of one table of a store, with the arguments of `torch.nn.Embedding`."""

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
        """Create the table if it does not exist.

        Parameters
        ----------
        rows : ids are below this number. None: keys are sparse, and any int64 is an id
        initializer, seed, trainable, ids : as in `Ids`
        padding_idx : an id whose output is zeros and whose row is not trained, in addition to -1
        dtype : dtype of activations. None: float32
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
        """Return a row for each id, (*, dim). Ids are int32 or int64 of any shape, also nested
        (layout=torch.jagged); with ids="hash" they are of any kind, such as lists of text."""
        (output,) = self._activations(input).values()
        return output

    def _given(self, *arguments: Any) -> dict[str, FeatureIds]:
        ((name, table),) = self.tables.items()
        (ids,) = arguments
        return given_one(table, ids_of(table, keys_for(table, ids), what=f"table {name!r}"))


class Collection(StoreModule):
    """Several tables, by feature; each forward and each step is one call to the store."""

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, features: Any) -> dict[str, Any]:
        """Return {feature: its activations}, in the tables' order. A feature of a `Bag` has pooled
        rows, (bags, dim); a feature of an `Ids` has a row for each id, (*, dim). The activations of
        a feature that is in several tables are named `feature@table`.

        Parameters
        ----------
        features : a mapping with the ids of each feature, or a KeyedJaggedTensor. For a `Bag`, ids
            are (bags, length); (bags,), one id per bag; or a tuple of the arguments of
            `EmbeddingBag.forward`. For `Ids`, ids have any shape. A KeyedJaggedTensor is an object
            with `keys()`, `values()` and `offsets()` or `lengths()`; for `Ids` its ids of a feature
            are (n,). Other features are ignored.
        """
        return self._activations(features)

    def _given(self, *features: Any) -> dict[str, FeatureIds]:
        return given_of(self.lookups, *features)


class EmbeddingBagCollection(Collection):
    """Bags of some tables, and rows of other tables, by feature."""

    _kinds = (Bag, Ids)


class EmbeddingCollection(Collection):
    """Rows of several tables, by feature."""

    _kinds = (Ids,)

"""What tests of steps have in every framework: two tables, of the features x, y and z."""

from typing import Any

import numpy as np

from embstore import Adam, RowWiseAdagrad, Sgd, Uniform
from embstore.handles.store import Store
from tests.frameworks.numpy_twin import bags

ROWS = 40
INITIAL = {"rows": ROWS, "initializer": Uniform(-1, 1)}


def bags_of(adapter: Any) -> list[Any]:
    """Return two tables as an adapter, a package of `embstore_client`, describes them."""
    return [
        adapter.Bag("a", dim=4, features=["x", "y"], optimizer=Adam(0.1), **INITIAL),
        adapter.Bag(
            "b", dim=3, features=["z"], mode="mean", optimizer=RowWiseAdagrad(0.1), **INITIAL
        ),
    ]


class Modules:
    """Modules of an adapter that has EmbeddingBag and EmbeddingBagCollection."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def collection(self, store: Store) -> Any:
        return self._adapter.EmbeddingBagCollection(store, bags_of(self._adapter))

    def one_table(self, store: Store, name: str = "t", **options: Any) -> Any:
        usual = {"dim": 4, "rows": ROWS, "optimizer": Sgd(0.1)}
        return self._adapter.EmbeddingBag(store, name, **(usual | options), mode="sum")


def drawn(
    rng: np.random.Generator,
) -> tuple[dict[str, tuple[Any, Any]], np.ndarray, dict[str, Any]]:
    """Return ids and offsets by feature, weights of "x", and all of it as the twin has it."""
    plain = {feature: bags(rng, ROWS) for feature in "xyz"}
    weights = rng.standard_normal(len(plain["x"][0]), np.float32)
    twins: dict[str, Any] = {feature: (*of, None) for feature, of in plain.items()}
    twins["x"] = (*plain["x"], weights)
    return plain, weights, twins

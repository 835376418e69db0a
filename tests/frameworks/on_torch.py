"""What tests of steps do in Torch: `test_steps.py` says what each is for."""

import pickle
from typing import Any

import numpy as np
import torch

from embstore import Adam, RowWiseAdagrad, Sgd, Uniform
from embstore.handles.store import Store
from embstore_client.torch import Bag, EmbeddingBag, EmbeddingBagCollection
from tests.frameworks.numpy_twin import bags, kept

ROWS = 40


def collection(store: Store) -> EmbeddingBagCollection:
    initial = {"rows": ROWS, "initializer": Uniform(-1, 1)}
    return EmbeddingBagCollection(
        store,
        [
            Bag("a", dim=4, features=["x", "y"], optimizer=Adam(0.1), **initial),
            Bag("b", dim=3, features=["z"], mode="mean", optimizer=RowWiseAdagrad(0.1), **initial),
        ],
    )


def one_table(store: Store, name: str = "t", **options: Any) -> EmbeddingBag:
    return EmbeddingBag(
        store, name, **({"dim": 4, "rows": ROWS, "optimizer": Sgd(0.1)} | options), mode="sum"
    )


def batch_of(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return features as Torch has them, "x" with weights, and as the twin has them."""
    plain = {feature: bags(rng, ROWS) for feature in "xyz"}
    weights = rng.standard_normal(len(plain["x"][0]), np.float32)
    given = {
        feature: (torch.tensor(ids), torch.tensor(offsets[:-1]))
        for feature, (ids, offsets) in plain.items()
    }
    given["x"] = (*given["x"], torch.tensor(weights))
    twins = {feature: (*of, None) for feature, of in plain.items()}
    twins["x"] = (*plain["x"], weights)
    return given, twins


def loss_of(outputs: dict[str, Any], features: str = "xyz") -> Any:
    return torch.cat([outputs[feature].square() for feature in features], dim=1).sum().sin()


class Adapter:
    features = "xyz"
    collection = staticmethod(collection)
    one_table = staticmethod(one_table)
    batch_of = staticmethod(batch_of)
    ids = staticmethod(torch.tensor)

    def call(self, module: Any, *arguments: Any, training: bool = True) -> Any:
        found = module.train(training)(*arguments)
        module.train()
        return found

    def back(self, module: Any, batches: list[Any], features: str = "xyz") -> list[Any]:
        forwards = [kept(module(given)) for given in batches]
        for outputs in reversed(forwards):  # it is the order of the forwards that counts
            loss_of(outputs, features).backward()
        return [
            {name: None if of.grad is None else of.grad.numpy() for name, of in outputs.items()}
            for outputs in forwards
        ]

    def back_of(self, module: Any, ids: Any, factor: float = 1.0) -> None:
        dense = torch.full((), factor, requires_grad=True)  # there is something to train always
        (module(ids).square() * dense).sum().backward()

    def weighted(self, ids: Any, weights: Any) -> tuple[Any, ...]:
        return ids, None, weights

    def ahead(self, module: Any, batches: Any, features: Any = lambda ids: ids, **how: Any) -> Any:
        return module.ahead(batches, features=features, **how)

    def forget(self, module: Any) -> None:
        module.zero_grad()

    def carried(self, module: Any) -> tuple[Any, bytes]:
        data = pickle.dumps(module)
        return pickle.loads(data), data

"""What tests of steps do in Torch: `test_steps.py` says what each is for."""

import pickle
from typing import Any

import numpy as np
import torch

import embstore_client.torch
from tests.frameworks.bags_of_steps import Modules, drawn
from tests.frameworks.numpy_twin import kept

MODULES = Modules(embstore_client.torch)
collection, one_table = MODULES.collection, MODULES.one_table


def batch_of(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return features as Torch has them, "x" with weights, and as the twin has them."""
    plain, weights, twins = drawn(rng)
    given = {
        feature: (torch.tensor(ids), torch.tensor(offsets[:-1]))
        for feature, (ids, offsets) in plain.items()
    }
    given["x"] = (*given["x"], torch.tensor(weights))
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

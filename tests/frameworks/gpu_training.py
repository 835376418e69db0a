"""Modules and batches of Torch, which are trained on a GPU and on the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np

from embstore import Adam, RowWiseAdagrad, Uniform
from embstore.handles.store import Store
from embstore_client.torch import Bag, EmbeddingBag, EmbeddingBagCollection

ROWS, BAGS = 60, 5


def table(**more: Any) -> dict[str, Any]:
    return {"rows": ROWS, "initializer": Uniform(-1, 1), "seed": 3} | more


def collection(store: Store, dtype: Any = None) -> Any:
    """Return two features of one table, one of another, and one whose bags have one id."""
    tables = [
        Bag("a", dim=4, features=["x", "y"], optimizer=Adam(0.1), **table()),
        Bag("b", dim=6, features=["z"], mode="mean", optimizer=RowWiseAdagrad(0.1), **table()),
        Bag("c", dim=6, features=["w"], optimizer=RowWiseAdagrad(0.1), **table()),
    ]
    return EmbeddingBagCollection(store, tables, dtype=dtype)


def bag(store: Store, mode: Any = "sum") -> Any:
    return EmbeddingBag(store, "a", dim=4, mode=mode, optimizer=Adam(0.1), **table())


def ids_of(rng: np.random.Generator, count: int) -> Any:
    return rng.zipf(1.3, count) % ROWS


def bags_of(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return ids, with repeats, and where bags begin, of which one is empty."""
    offsets = np.array([0, 3, 3, 4, 9])
    return ids_of(rng, 12), offsets


def features(rng: np.random.Generator) -> dict[str, Any]:
    weights = rng.standard_normal(12, np.float32)
    return {
        "x": (*bags_of(rng), weights),
        "y": bags_of(rng),
        "z": bags_of(rng),
        "w": ids_of(rng, BAGS),
    }


def moved(given: Any, to: Callable[[Any], Any], seen: dict[int, Any] | None = None) -> Any:
    """Return what is given as tensors; an array that is there twice is one tensor."""
    seen = {} if seen is None else seen
    if isinstance(given, dict):
        return {name: moved(of, to, seen) for name, of in given.items()}
    if isinstance(given, tuple | list):
        return type(given)(moved(of, to, seen) for of in given)
    if id(given) not in seen:
        seen[id(given)] = to(given)
    return seen[id(given)]


def back(outputs: Any) -> None:
    """Go back from a loss in which rows of outputs differ."""
    every = outputs.values() if isinstance(outputs, dict) else [outputs]
    loss = sum(of.float().square().cumsum(0).sin().sum() for of in every)
    loss.backward()


def digests(store: Store) -> dict[str, str]:
    return {name: store.table(name).digest() for name in store.tables()}

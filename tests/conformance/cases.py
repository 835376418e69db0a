"""What the cases of this folder have in common: tables, batches, and the proof that a refused call
has changed nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, RowWiseAdagrad, Sgd, Uniform

OPTIMIZERS = {
    "sgd": Sgd(0.1),
    "adagrad": Adagrad(0.1, epsilon=1e-6, initial_accumulator=0.25),
    "rowwise_adagrad": RowWiseAdagrad(0.1, initial_accumulator=0.5),
    "adam": Adam(0.01),
}
"""One of each kind, with parameters that are not the defaults where there are any."""


def config(**given: Any) -> dict[str, Any]:
    """Return a table's configuration, small where a case says nothing."""
    usual = {"dim": 4, "rows": 1000, "optimizer": Sgd(0.1), "initializer": Uniform(-0.1, 0.1)}
    return usual | given


def generator(seed: int) -> np.random.Generator:
    """Return the generator of a seed, which pytest shows beside a failure."""
    sys.stdout.write(f"seed {seed}\n")
    return np.random.default_rng(seed)


def batch(rng: np.random.Generator, count: int, rows: int = 1000, dim: int = 4) -> tuple[Any, Any]:
    """Draw keys (count,), many of them repeated, and gradients (count, dim)."""
    keys = rng.integers(0, rows, count) // rng.choice([1, 1, 8], count)
    return keys, normal(rng, count, dim)


def normal(rng: np.random.Generator, *shape: int) -> Any:
    """Draw float32 of that shape."""
    return rng.standard_normal(shape, np.float32)


def ones(count: int, dim: int = 4, value: float = 1.0) -> Any:
    """Return rows that all hold one value."""
    return np.full((count, dim), value, np.float32)


def assert_same(found: Any, wanted: Any) -> None:
    """Compare float32 arrays bit by bit: -0.0 is not 0.0, and one NaN is not another."""
    assert found.dtype == wanted.dtype == np.float32
    assert found.shape == wanted.shape
    wrong = np.argwhere(found.view(np.uint32) != wanted.view(np.uint32))
    assert not len(wrong), f"found and wanted differ at {wrong[:5].tolist()}"


def float32(*words: int) -> Any:
    """Return the float32 of these bits."""
    return np.array(words, np.uint32).view(np.float32)


def content(store: Any) -> dict[str, Any]:
    """Return all that a refused call must leave as it was."""
    tables = {name: store.table(name) for name in store.tables()}
    return {
        "command": store.command,
        "checkpoints": [(c.label, c.metadata, c.state.command) for c in store.checkpoints()],
        "tables": {n: (t.t, t.config, t.digest()) for n, t in tables.items()},
    }


@contextmanager
def refused(store: Any, error: type[Exception], *parts: str) -> Iterator[None]:
    """Expect exactly `error`, with these parts in its message, from a call that changes nothing."""
    before = content(store)
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    missing = [part for part in parts if part not in str(caught.value)]
    assert not missing, f"not in {str(caught.value)!r}"
    assert content(store) == before
    store.check_integrity()

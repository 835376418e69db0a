"""What random traces are made of: tables in several layouts, keys, rows, gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from embstore.config import Adagrad, Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import CapacityError

Config = dict[str, Any]

TABLES: dict[str, Config] = {
    "a": {"dim": 40, "rows": 200, "optimizer": Sgd(0.1), "initializer": Uniform(-1.0, 1.0)},
    "b": {
        "dim": 13,
        "rows": 300,
        "optimizer": RowWiseAdagrad(0.1, initial_accumulator=0.25),
        "initializer": Normal(0.5, 2.0),
    },
    "c": {"dim": 24, "rows": 120, "optimizer": Adam(0.01), "initializer": Constant(0.5)},
    "d": {"dim": 33, "rows": 250, "optimizer": Adagrad(0.1), "initializer": Uniform(0.0, 0.1)},
    # The next two share the pools of "a" and "b", and have weight decay, which those have not.
    "part/e.x-1": {
        "dim": 40,
        "rows": 60,
        "optimizer": Sgd(0.5, weight_decay=0.1),
        "initializer": Normal(0.0, 1.0),
    },
    "part/f": {
        "dim": 13,
        "rows": 50,
        "optimizer": RowWiseAdagrad(0.2, weight_decay=0.1, decoupled_weight_decay=True),
        "initializer": Uniform(-3.0, -1.0),
        "seed": 2**64 - 1,
    },
}
"""Tables of four optimizers in four layouts."""

_SPECIAL = np.array([-0.0, 0.0, 1e-45, -1e-40, 1.17549435e-38, 1e18, -1e17], np.float32)
_EXTREME = np.array([np.inf, -np.inf, np.nan, 3e38, -3e19], np.float32)


def zipf_keys(rng: np.random.Generator, rows: int, count: int) -> Any:
    """Return keys in [0, rows), a few of them very often. Neighbours are not alike in heat."""
    ranks = np.minimum(rng.zipf(1.2, count) - 1, rows - 1)
    return ranks * 7919 % rows


def near_keys(rng: np.random.Generator, rows: int, count: int, span: int) -> Any:
    """Return keys from a stretch of at most `span` keys, repeated where there are more of them."""
    span = min(span, rows)
    return rng.integers(0, rows - span + 1) + rng.integers(0, span, count)


def values(rng: np.random.Generator, *shape: int, special: bool = False) -> Any:
    """Return random fp32; `special`: some of them zeros of either sign, denormal or huge."""
    made = rng.normal(size=shape).astype(np.float32)
    if special:
        chosen = rng.random(shape) < 0.1
        made[chosen] = rng.choice(_SPECIAL, np.count_nonzero(chosen))
    return made


def any_values(rng: np.random.Generator, *shape: int) -> Any:
    """Return random fp32, a few of them infinite, not a number or beyond rule 9."""
    made = values(rng, *shape, special=True)
    chosen = rng.random(shape) < 0.01
    made[chosen] = rng.choice(_EXTREME, np.count_nonzero(chosen))
    return made


def cut_into_bags(rng: np.random.Generator, count: int) -> Any:
    """Return offsets of bags over `count` keys, some of them empty."""
    inner = rng.integers(0, count + 1, rng.integers(0, 12))
    return np.array([0, *np.sort(inner), count], np.int64)


_SMALLEST: dict[str, int] = {}
"""What was found, by device, level two, keys and tables: each takes its own bytes beside the
rows."""


def smallest_cache(backend: Any, tables: Mapping[str, Config]) -> int:
    """Return the least cache_bytes with which a store can have these tables, by bisection."""
    asked = repr((backend.device, backend.host_cache_bytes, backend.key_space, tables))
    if asked in _SMALLEST:
        return _SMALLEST[asked]
    low, high = 1, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        store = backend.open_store(f"probe-{middle}", cache_bytes=middle, threads=1)
        try:
            for name, config in tables.items():
                store.create_table(name, **config)
            high = middle
        except CapacityError as exc:
            assert "cache_bytes" in str(exc)
            low = middle
        finally:
            store.close()
    return _SMALLEST.setdefault(asked, high)

"""What the cases of this folder have in common: tables, batches, and the proof that a refused call
has changed nothing."""

import os
import reprlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd, Uniform
from embstore.host.descriptors import SPARE
from embstore.tables import frame

OPTIMIZERS = {
    "sgd": Sgd(0.1),
    "adagrad": Adagrad(0.1, epsilon=1e-6, initial_accumulator=0.25),
    "rowwise_adagrad": RowWiseAdagrad(0.1, initial_accumulator=0.5),
    "adam": Adam(0.01),
    "ftrl": Ftrl(0.1, beta=0.5, l1=0.05, l2=0.2),
}
"""One of each kind, with parameters that are not the defaults where there are any."""
KINDS = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


T = TypeVar("T")
_WAITS = "wait wait_for join __enter__ _wait_for_tstate_lock _call looking close".split()
"""Where threads wait, in the modules of threads and of the engine's lock."""


def config(**given: Any) -> dict[str, Any]:
    """Return a table's configuration, small where a case says nothing."""
    usual = {"dim": 4, "rows": 1000, "optimizer": Sgd(0.1), "initializer": Uniform(-0.1, 0.1)}
    return usual | given


def of_each_kind(**given: Any) -> dict[str, dict[str, Any]]:
    """Return the configurations of a table of each optimizer, called as it is."""
    return {kind: config(optimizer=optimizer, **given) for kind, optimizer in OPTIMIZERS.items()}


def generator(seed: int) -> np.random.Generator:
    """Return the generator of a seed, which pytest shows beside a failure."""
    sys.stdout.write(f"seed {seed}\n")
    return np.random.default_rng(seed)


def each(values: Iterable[T]) -> Iterator[T]:
    """Yield values; a failure shows beside it which were tried, the last one wrong."""
    for value in values:
        sys.stdout.write(f"{reprlib.repr(value)}\n")
        yield value


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
        "checkpoints": [(c.label, c.metadata, c.command) for c in store.checkpoints()],
        "tables": {name: (t.describe(), t.digest()) for name, t in tables.items()},
    }


@contextmanager
def unchanged(store: Any) -> Iterator[None]:
    """Expect that calls which are all refused change nothing."""
    before = content(store)
    yield
    assert content(store) == before
    store.check_integrity()


@contextmanager
def raising(error: type[Exception], *parts: str) -> Iterator[None]:
    """Expect exactly `error`, with these parts in its message."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    missing = [part for part in parts if part not in str(caught.value)]
    assert not missing, f"not in {str(caught.value)!r}"


@contextmanager
def refused(store: Any, error: type[Exception], *parts: str) -> Iterator[None]:
    """Expect exactly `error`, with these parts in its message, from a call that changes nothing."""
    with unchanged(store), raising(error, *parts):
        yield


def grow(twin: Any, name: str, rows: int) -> None:
    """Let a table have more rows; one of sparse keys needs none."""
    if twin.reference.table(name).config.key_space == "dense":
        twin.on(name, "grow", rows)


def engine_of(store: Any) -> Any:
    """Return the engine of a store; of a served one too, for the few cases that look into it."""
    executor = (store.server.store if hasattr(store, "server") else store).executor
    if hasattr(executor, "shards"):
        pytest.skip("a cluster has several engines")
    return executor


def is_waiting(thread: threading.Thread) -> bool:
    """Tell whether a thread waits: for the engine, a thread, an event or a condition."""
    top = sys._current_frames().get(thread.ident or 0)
    files = threading.__file__, frame.__file__
    return top is not None and top.f_code.co_filename in files and top.f_code.co_name in _WAITS


def pool_stats(store: Any) -> Any:
    """Return the stats of a store's only pool."""
    stats = store.stats()
    if "shards" in stats:
        pytest.skip("a cluster has several pools")
    (found,) = stats["cache"]["pools"]
    return found


def total(store: Any, stat: str) -> int:
    """Return a stat of all pools together."""
    stats = store.stats()
    shards = stats.get("shards", [stats])
    return sum(pool[stat] for shard in shards for pool in shard["cache"]["pools"])


def steady(pool: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a pool but for those that change when the background comes to write
    dirty rows of level two."""
    written = {"dirty_rows", "host_dirty_rows", "evictions_clean", "evictions_dirty"}
    return {n: v for n, v in pool.items() if not (pool["host_slots"] and n in written)}


def hits(store: Any, lookup: Callable[[], Any]) -> int:
    """Return how many unique keys of a call were in the cache, in either level."""

    def found() -> int:
        return total(store, "unique_hits") + total(store, "misses_host")

    before = found()
    lookup()
    return found() - before


def damage_first_row(file: Path) -> int:
    """Flip a bit of the row in a file's first record, whose checksum fails then; return its key."""
    content = bytearray(file.read_bytes())
    content[4096 + 16 + 21] ^= 4
    file.write_bytes(content)
    return int.from_bytes(content[4096 + 8 : 4096 + 12], "little")


def descriptors() -> int:
    """Return how many files this process has open, but for the spare descriptors of its stores."""
    return len(os.listdir("/proc/self/fd")) - len(SPARE._kept)

"""Optimizers, dims, caches, policies and threads against each other: the bits are always the same.

Every dim meets every optimizer, and every set of tables two caches, both policies and one and two
threads; not all at once.

Source: "capacity not a power of two, odd dims (7, 13), dims not a multiple of 4": HKV#66,
DynamicEmb's alignment tests; "updates to overflow rows lost", cDLRM; "repeat run bit-identical in
deterministic mode", FBGEMM, DynamicEmb's deterministic insert.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from embstore.config import Adagrad, Adam, Ftrl, Normal, RowWiseAdagrad, Sgd, Uniform
from tests.conformance.backends import TINY
from tests.conformance.cases import generator
from tests.conformance.replay import creations, expect, random_commands, read_bits
from tests.conformance.traces import smallest_cache
from tests.conformance.twin import digests

OPTIMIZERS = (
    Sgd(0.1),
    Adagrad(0.1),
    RowWiseAdagrad(0.1, initial_accumulator=0.5),
    Adam(0.01),
    Ftrl(0.1, l1=0.1, l2=0.1),
)
ROWS = {1: 1200, 7: 800, 13: 600, 64: 160}
"""By dim: several times the slots that the smallest cache has."""
LARGE = 1 << 24
LIMITS = replace(TINY, base_segment_bytes=1 << 22)
"""In 64 KiB the widest rows would each be a segment, and a page of the bitmap thousands of them."""


def layouts(turn):
    """Return a table of every dim and every optimizer, paired differently at each turn, and one
    more that shares a pool."""
    tables = {
        f"dim{dim}": {
            "dim": dim,
            "rows": rows,
            "optimizer": OPTIMIZERS[(place + turn) % len(OPTIMIZERS)],
            "initializer": Uniform(-0.5, 0.5),
        }
        for place, (dim, rows) in enumerate(ROWS.items())
    }
    shared = {"rows": 300, "initializer": Normal(0.0, 0.1)}
    return tables | {"shared": tables["dim13"] | shared}


def wide(turn):
    """Return tables of the largest dim, two optimizers, and a narrow one."""
    tables = {
        f"wide{i}": {
            "dim": 4096,
            "rows": 14,
            "optimizer": OPTIMIZERS[(i + turn) % len(OPTIMIZERS)],
            "initializer": Normal(0.0, 1.0),
        }
        for i in (0, 1)
    }
    return tables | {"narrow": layouts(turn)["dim1"] | {"rows": 500}}


TRACES = {f"layouts{i}": (layouts(i), 5) for i in range(len(OPTIMIZERS))} | {
    f"wide{i}": (wide(i), 4) for i in (0, 2, 4)
}
STORES = {
    "smallest-lru-1": ("smallest", "lru", 1),
    "smallest-lfu-2": ("smallest", "lfu", 2),
    "small-lru-2": ("small", "lru", 2),
    "small-lfu-1": ("small", "lfu", 1),
    "large-lru-2": ("large", "lru", 2),
    "large-lfu-1": ("large", "lfu", 1),
}
MET = [(trace, list(STORES)[(n + more) % 6]) for n, trace in enumerate(TRACES) for more in (0, 3)]


@cache
def expected(trace, reference):
    """Return a trace's commands, what a reference of that kind answers, and its digests."""
    tables, rounds = TRACES[trace]
    rng = generator(sum(trace.encode()))
    commands = creations(tables) + random_commands(rng, tables, rounds)
    return commands, *expect(commands, reference())


@pytest.fixture
def cache_bytes(backend):
    """Return the bytes of a cache, by its name."""
    found = {}

    def of(trace, name):
        if trace not in found:
            found[trace] = smallest_cache(backend, TRACES[trace][0])
        return {"smallest": found[trace], "small": found[trace] * 3 // 2, "large": LARGE}[name]

    return of


@pytest.mark.parametrize(("trace", "store"), MET)
def test_matrix(backend, cache_bytes, trace, store):
    commands, answers, wanted = expected(trace, type(backend.reference()))
    size, policy, threads = STORES[store]
    options = {"policy": policy, "threads": threads, "limits": LIMITS, "checkpoints_keep": 1}
    options["cache_bytes"] = cache_bytes(trace, size)
    done = Counter()
    opened = backend.open_store(**options)
    for place, (command, answer) in enumerate(zip(commands, answers, strict=True)):
        assert read_bits(command(opened)) == answer, f"command {place} reads otherwise"
        if place % 6 == 5:
            opened.flush()
            backend.settle(opened)
        if place % 30 == 29:
            opened.checkpoint(f"after {place}")
        if place == len(commands) // 2:
            done += work(opened)
            opened.close()
            opened = backend.open_store(**options)
    backend.settle(opened)
    opened.check_integrity()
    assert digests(opened) == wanted
    done += work(opened)
    assert not done["merge_failures"]
    if "one_store" in backend.offers:
        assert done["folds"] and done["compactions"]
        left = [done["evictions_host"] or done[f"evictions_{kind}"] for kind in ("dirty", "clean")]
        assert all(left) == any(left) == (size != "large")
        assert bool(done["calls_in_parts"]) == (size != "large")


def work(store):
    """Return what a store did since it was opened."""
    stats = store.stats()
    kinds = ("folds", "compactions", "merge_failures")
    done = Counter({kind: stats["storage"][kind] for kind in kinds})
    for pool in stats["cache"]["pools"]:
        for kind in ("evictions_dirty", "evictions_clean", "evictions_host", "calls_in_parts"):
            done[kind] += pool[kind]
    return done

"""Many tables of sparse keys, each with a pool of its own, in caches for as many dense ones."""

import numpy as np
import pytest

from embstore.config import Adam, RowWiseAdagrad, Sgd, Uniform
from tests.conformance.cases import assert_same, config, generator, normal
from tests.conformance.twin import digests

pytestmark = pytest.mark.needs("one_store")

DIMS = 4, 8, 16, 32, 64
OPTIMIZERS = Sgd(0.1), RowWiseAdagrad(0.1), Adam(0.01)
SMALL, LARGE = 2 << 20, 11 << 20


def configs(count):
    """Return `count` tables, by name, without their keys."""
    return {
        f"t{number:02}": {
            "dim": DIMS[number % len(DIMS)],
            "optimizer": OPTIMIZERS[number % len(OPTIMIZERS)],
            "initializer": Uniform(-1, 1),
        }
        for number in range(count)
    }


def opened(backend, name, tables, cache_bytes):
    store = backend.open_store(name, cache_bytes=cache_bytes)
    for table, of in configs(tables).items():
        store.create_table(table, key_space="sparse", **of)
    return store


@pytest.mark.parametrize("tables", [26, 60])
@pytest.mark.parametrize("cache_bytes", [SMALL, LARGE])
def test_as_many_tables_of_sparse_keys_as_of_dense_ones(backend, tables, cache_bytes):
    """Each took a twentieth of the cache."""
    dense = backend.open_store("dense", cache_bytes=cache_bytes)
    for name, of in configs(tables).items():
        dense.create_table(name, **config(key_space="dense", **of))
    dense.close()
    sparse = opened(backend, "sparse", tables, cache_bytes)
    sparse.lookup({name: np.arange(5) for name in sparse.tables()})
    cache = sparse.stats()["cache"]
    assert len(cache["pools"]) == tables
    assert cache["memory_bytes"] <= cache_bytes // 2


def test_rows_of_many_tables_leave_and_come_back(backend):
    rng, tables = generator(40), 60
    small, large = (
        opened(backend, name, tables, size) for name, size in (("small", SMALL), ("large", LARGE))
    )
    ids = rng.integers(-(2**63), -1, 14_000 // tables)
    for name in small.tables():
        rows = normal(rng, len(ids), small.table(name).dim)
        for store in (small, large):
            store.table(name).assign(ids, rows)
    for _ in range(2):
        keys = {name: rng.choice(ids, 30) for name in small.tables()}
        found = small.lookup(keys)
        for name, rows in large.lookup(keys).items():
            assert_same(found[name], rows)
        gradients = {
            name: (of, normal(rng, len(of), small.table(name).dim)) for name, of in keys.items()
        }
        for store in (small, large):
            store.update(gradients)
    for store in (small, large):
        store.check_integrity()
    pools = small.stats()["cache"]["pools"]
    assert sum(pool["evictions_dirty"] + pool["evictions_host"] for pool in pools) > 100
    assert small.stats()["cache"]["memory_bytes"] <= SMALL
    assert digests(small) == digests(large)

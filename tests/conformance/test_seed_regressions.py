"""Defects of the artifacts that embstore subsumes (seeds.md, section 7), as tests of the store.

Look-ahead, hot sets and leases come with issues of their own; what of a case concerns plain calls
stands here. Beside these: "float32 slot ids; > 2^24 rows" in test_large_tables.py, "eviction under
a concurrent read" in test_threads.py, "async mode drops inserts" in test_matrix.py, which runs one
trace in every mode.
"""

import numpy as np
import pytest

from embstore.config import Constant
from tests.conformance.backends import TINY
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    generator,
    normal,
    ones,
)
from tests.conformance.gate import Gated
from tests.conformance.twin import Twin

KINDS = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def pool(store):
    (found,) = store.stats()["cache"]["pools"]
    return found


@pytest.mark.parametrize("seed", [231, 232])
def test_rows_written_back_late_are_not_read_early(tmp_path, seed):
    """Source: cDLRM, "stale prefetch vs queued eviction: random trace, delayed write-back injected;
    equality with dense reference". What is delayed here is a merge: it stands still with old rows
    in its hands while newer ones are written and evicted.
    """
    backend, rng = Gated(tmp_path), generator(seed)
    twin = Twin(backend, limits=TINY, cache_bytes=40 << 10, checkpoints_keep=1)
    twin.create_table("a", **config(dim=32, rows=600, optimizer=OPTIMIZERS["adagrad"]))
    stood = set()
    for step in range(40):
        twin.on("a", "update", *batch(rng, 80, 600, 32))
        keys = rng.integers(0, 600, 200)
        assert_same(twin.store.table("a").lookup(keys), twin.reference.table("a").lookup(keys))
        if step % 5 == 0:
            twin.checkpoint(f"c{step}")
        stood.add(backend.advance(twin.store, int(rng.integers(3))).partition(":")[0])
    assert {"fold"} <= stood
    twin.settle()
    twin.check()
    twin.reopen()
    twin.check()
    twin.store.close()


def keys_of_one_bucket(count, buckets):
    """Return keys of the first table that have bucket 0 as both their choices, of so many buckets.

    The index mixes a key (MurmurHash3's fmix64); its upper and lower halves choose.
    """
    keys = np.arange(8_000_000, dtype=np.uint64)
    h = keys
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    h ^= h >> np.uint64(33)
    edge = np.uint64((1 << 32) // buckets)
    both = ((h >> np.uint64(32)) < edge) & ((h & np.uint64(0xFFFFFFFF)) < edge)
    return keys[both][:count].astype(np.int64)


def test_ids_that_all_fall_into_one_bucket(open_twin):
    """Source: cDLRM, "two ids take one way: adversarial ids in one set; each id returns its own
    vector". A bucket holds 8 keys and the stash 256: this set fills both and forces a new index.
    """
    keys = keys_of_one_bucket(300, 150)
    assert len(keys) == 300
    twin, rng = open_twin(cache_bytes=100 << 10), generator(234)
    table = twin.create_table("a", **config(dim=4, rows=2**40, initializer=Constant(0.0)))
    rows = np.arange(1200, dtype=np.float32).reshape(300, 4)
    twin.on("a", "assign", keys, rows)
    assert pool(twin.store)["resident_rows"] == 300
    assert_same(table.lookup(keys), rows)
    order = rng.permutation(300)
    assert_same(table.lookup(keys[order]), rows[order])
    twin.on("a", "update", keys[::3], normal(rng, 100, 4))
    table.lookup(2**39 + np.arange(5000))  # push them all out again
    twin.on("a", "update", keys, normal(rng, 300, 4))


@KINDS
def test_updates_of_rows_that_did_not_fit_are_kept(open_twin, optimizer):
    """Source: cDLRM, "updates to overflow rows lost; no final flush: over-capacity batches, then
    flush and compare".
    """
    twin, rng = open_twin(cache_bytes=32 << 10), generator(235)
    twin.create_table("a", **config(dim=20, rows=1000, optimizer=optimizer))
    for _ in range(2):  # while the cache grows, or is full
        keys = rng.permutation(1000)[:300]
        twin.on("a", "update", keys, normal(rng, len(keys), 20))
    twin.store.table("a").lookup(np.arange(1000))  # takes every slot that the budget pays for
    before = pool(twin.store)
    for _ in range(3):
        keys = rng.permutation(1000)[: before["slots"] + 100]
        twin.on("a", "update", keys, normal(rng, len(keys), 20))
    assert pool(twin.store)["calls_in_parts"] == before["calls_in_parts"] + 3
    twin.store.flush()
    twin.check()
    twin.reopen()  # closing is the final flush


@KINDS
def test_state_moves_with_the_row(open_twin, optimizer):
    """Source: CachedEmbedding, "state tied to slot: Adagrad/Adam with forced evictions vs dense".
    Rows come back into other slots than they left.
    """
    twin, rng = open_twin(cache_bytes=32 << 10), generator(236)
    table = twin.create_table("a", **config(dim=20, rows=1000, optimizer=optimizer))
    for _ in range(10):
        keys = rng.permutation(1000)[:60]
        twin.on("a", "update", keys, normal(rng, 60, 20))
        table.lookup(rng.permutation(1000)[:300])
    assert pool(twin.store)["evictions_dirty"] > 300


def test_pretrained_rows_are_read_by_their_own_keys_after_a_restart(open_twin):
    """Source: CachedEmbedding, "permutation lost at restart, pretrained rows misread: import
    pretrained, restart, compare". Frequencies that reorder the cache reorder nothing else.
    """
    twin, rng = open_twin(cache_bytes=64 << 10, policy="lfu"), generator(237)
    twin.create_table("a", **config(dim=16, rows=2000))
    pretrained = normal(rng, 2000, 16)
    for part in np.split(rng.permutation(2000), 8):
        twin.on("a", "assign", part, pretrained[part])
    for _ in range(20):
        twin.store.table("a").lookup(rng.zipf(1.2, 200) % 2000)
    for _ in range(2):
        twin.reopen()
        assert_same(twin.store.table("a").lookup(np.arange(2000)), pretrained)


def test_a_batch_larger_than_the_cache_is_answered(open_twin):
    """Source: CachedEmbedding, "assertion when batch > cache: must succeed, slower"."""
    twin, rng = open_twin(cache_bytes=32 << 10), generator(238)
    for name in "ab":
        twin.create_table(name, **config(dim=30, rows=3000))
    keys = {name: rng.permutation(3000) for name in "ab"}
    found = twin.store.lookup(keys)
    for name in "ab":
        assert_same(found[name], twin.reference.table(name).lookup(keys[name]))
    twin.update({name: (keys[name], normal(rng, 3000, 30)) for name in "ab"})
    twin.update_ranks([{name: (keys[name], normal(rng, 3000, 30)) for name in "ab"}] * 2)


def test_a_missed_row_is_what_the_backing_files_hold(open_twin):
    """Source: BagPipe, "fetched values never stored: miss value equals backing row"."""
    twin, rng = open_twin(cache_bytes=32 << 10), generator(239)
    table = twin.create_table("a", **config(dim=30, rows=3000, optimizer=OPTIMIZERS["adam"]))
    keys = rng.permutation(3000)[:400]
    twin.on("a", "assign", keys, normal(rng, 400, 30))
    for _ in range(3):
        table.lookup(np.arange(3000))  # everything is a miss, again and again
        weights, _ = table.read_rows(keys)  # around the cache
        assert_same(table.lookup(keys), weights)
        assert_same(weights, twin.reference.table("a").lookup(keys))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_reading_alone_leaves_nothing_pinned(open_twin, policy):
    """Source: FBGEMM, "pins leak with no backward: client dies or only reads". Lookups that no
    update follows, and calls that are refused halfway, hold no slot.
    """
    twin, rng = open_twin(cache_bytes=32 << 10, policy=policy), generator(240)
    table = twin.create_table("a", **config(dim=30, rows=3000))
    for _ in range(50):
        table.lookup(rng.integers(0, 3000, 150))
        with pytest.raises(ValueError, match="finite"):
            table.update(rng.integers(0, 3000, 5), ones(5, 30, np.inf))
    slots = pool(twin.store)["slots"]
    table.lookup(np.arange(slots))  # needs every slot at once
    before = pool(twin.store)
    table.lookup(np.arange(slots))
    assert pool(twin.store)["unique_hits"] - before["unique_hits"] == slots


def test_rows_of_one_call_do_not_push_each_other_out(open_twin):
    """Source: cDLRM and ScratchPipe's hold on a window: a batch that fits is resident as a whole,
    however cold its rows are.
    """
    twin, rng = open_twin(cache_bytes=32 << 10, policy="lfu"), generator(241)
    table = twin.create_table("a", **config(dim=30, rows=3000))
    table.lookup(np.arange(2000))
    slots = pool(twin.store)["slots"]
    for _ in range(10):
        table.lookup(np.arange(slots // 2))  # hot
    keys = 2000 + rng.permutation(900)[:slots]
    table.lookup(keys)
    before = pool(twin.store)
    table.lookup(keys)
    assert pool(twin.store)["unique_hits"] - before["unique_hits"] == slots

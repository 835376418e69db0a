"""Warming brings the rows of highest profiled frequency in, beside all else that happens.

What comes between two pieces of work is decided by the test: by what it does when progress is
reported, or when a profile has been read.
"""

import threading
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest

from embstore.errors import StoreClosedError
from tests.conformance.cases import assert_same, config, engine_of, generator, hits, normal, total
from tests.conformance.hotness.profiles import (
    LARGE_BYTES,
    NARROW,
    ROWS,
    WIDE,
    ended,
    falling,
    fill,
    profile,
    train,
)

pytestmark = pytest.mark.needs("one_store")

FEW = 4000


@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_warm_rows_are_the_most_frequent_ones_and_rows_stay_exact(open_twin, policy):
    twin, rng = open_twin(cache_bytes=64 << 10, policy=policy), generator(601)
    store = twin.store
    twin.create_table("a", **config(rows=FEW))
    train(twin, "a", rng)
    store.import_profile(profile(a=falling(FEW)))
    reports = []
    warmed = store.warm_cache(0.5, progress=lambda *report: reports.append(report))
    assert reports[-1] == (warmed, warmed) and warmed > total(store, "slots") // 3
    assert hits(store, lambda: store.lookup({"a": np.arange(warmed)})) == warmed
    train(twin, "a", rng)


@pytest.mark.parametrize("policy", ["lfu", "rank"])
def test_pretrained_rows_are_read_at_their_own_keys(open_twin, policy):
    """Source: CachedEmbedding renumbers rows by rank, loses the permutation
    at a restart and reads pretrained rows at the wrong places."""
    twin, rng = open_twin(cache_bytes=64 << 10, policy=policy, a=config(rows=FEW)), generator(604)
    twin.store.import_profile(profile(a=rng.permutation(FEW) + 1))
    pretrained = normal(rng, FEW, 4)
    for part in np.split(rng.permutation(FEW), 8):
        twin.on("a", "assign", part, pretrained[part])
    twin.store.warm_cache(0.7)
    for _ in range(20):
        twin.store.table("a").lookup(rng.zipf(1.2, 200) % FEW)
    for _ in range(2):
        twin.reopen()
        assert_same(twin.store.table("a").lookup(np.arange(FEW)), pretrained)
    train(twin, "a", rng)
    twin.store.import_profile(profile(a=rng.permutation(FEW) + 1))
    train(twin, "a", rng)


@pytest.fixture
def profiled(open_twin):
    """Two tables, each of a pool of its own, all of whose rows have a profile."""
    twin, rng = open_twin(cache_bytes=LARGE_BYTES), generator(1001)
    for name, shape in (("a", NARROW), ("b", WIDE)):
        twin.create_table(name, **shape)
        twin.on(name, "assign", np.arange(3000), normal(rng, 3000, shape["dim"]))
    twin.store.import_profile(profile(a=falling(ROWS), b=falling(ROWS)))
    twin.checkpoint("one")
    return twin


@contextmanager
def once_a_profile_is_read(store, act):
    """Do something when the next profile has been read; nobody has the engine then."""
    kept = engine_of(store).frequencies.kept
    read = kept.profile

    def read_and_act(kind, table_id):
        kept.profile = read
        found = read(kind, table_id)
        act()
        return found

    kept.profile = read_and_act
    try:
        yield
    finally:
        kept.profile = read


@pytest.mark.parametrize("during", ["choosing", "reading"])
@pytest.mark.parametrize(
    ("verb", "name"), [("drop_table", "a"), ("drop_table", "b"), ("restore", "one")]
)
def test_tables_may_go_while_rows_are_warmed(profiled, verb, name, during):
    """Review: A pool that was closed by then grew for ever, with the memory of nobody, or
    was written to when it had no more. What is left is warmed and trained, within the bytes."""
    goes = [partial(getattr(profiled, verb), name)]

    def go(*progress):
        while goes:
            goes.pop()()

    if during == "choosing":
        with once_a_profile_is_read(profiled.store, go):
            ended(lambda: profiled.store.warm_cache(0.7))
    else:
        ended(lambda: profiled.store.warm_cache(0.7, progress=go))
    assert not goes
    cache = profiled.store.stats()["cache"]
    assert cache["memory_bytes"] <= cache["budget_bytes"]
    assert ended(lambda: profiled.store.warm_cache(0.5)) > 0
    for name in profiled.store.tables():
        ended(partial(fill, profiled, name))
    profiled.store.check_integrity()


def test_close_when_progress_is_reported_ends(open_twin):
    """Review: Opening's warm-up waited for the one that reported its progress, which
    waited for it to end."""
    twin = open_twin(cache_bytes=LARGE_BYTES, a=NARROW)
    twin.store.import_profile(profile(a=falling(ROWS)))

    def close(done, of):
        engine_of(twin.store).warming.start(0.5)  # as opening does
        twin.store.close()

    with suppress(StoreClosedError):
        ended(lambda: twin.store.warm_cache(0.7, progress=close))
    twin.reopen()


def test_a_share_of_less_than_a_row_warms_nothing(open_twin, monkeypatch):
    """Review: NumPy's partition by a place that is not there was a traceback, of a thread
    at opening."""
    errors = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    twin = open_twin(cache_bytes=LARGE_BYTES, a=NARROW)
    twin.store.import_profile(profile(a=[0, 3, 2]))
    assert ended(lambda: twin.store.warm_cache(1e-9)) == 0
    assert total(twin.store, "resident_rows") == 0
    twin.reopen(warm_up=1e-9)
    assert total(twin.store, "resident_rows") == 0
    twin.reopen(warm_up=0.0)  # closing waits for the warm-up's thread
    assert not errors

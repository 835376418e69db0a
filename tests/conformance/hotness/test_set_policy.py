"""set_policy: another policy for an open store. Rows stay where they are, and begin anew."""

from itertools import permutations

import numpy as np
import pytest

from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.cache.levels import levels_of
from embstore.cache.policies import POLICIES
from embstore.errors import InvalidArgumentError
from embstore.hotness import ranking
from tests.conformance.cases import config, generator, hits, normal, refused
from tests.conformance.hotness.profiles import profile, resident
from tests.conformance.twin import digests

pytestmark = pytest.mark.needs("one_store")

FEW = 4000
CACHE_BYTES = 64 << 10


@pytest.mark.needs("process")
@pytest.mark.parametrize("before, after", [*permutations(POLICIES, 2)])
@pytest.mark.needs("plain_keys")
def test_rows_count_as_the_new_policy_has_it(open_twin, monkeypatch, before, after):
    monkeypatch.setattr(ranking, "PIECE_SLOTS", 192)
    twin, rng = open_twin(policy=before, cache_bytes=3 * CACHE_BYTES // 2), generator(811)
    for name in "ab":
        twin.create_table(name, **config(rows=2000))
    counts = rng.integers(1, 3000, 2000)
    twin.store.import_profile(profile(a=counts))
    for _ in range(10):
        twin.store.lookup({name: rng.integers(0, 2000, 50) for name in "ab"})
    was = digests(twin.store)
    rows = set(resident(twin.store)[0].tolist())
    twin.store.set_policy(after)
    assert twin.store.stats()["policy"] == after
    assert digests(twin.store) == was
    keys, found = resident(twin.store)
    assert set(keys.tolist()) == rows
    is_profiled = keys >> KEY_BITS == 0
    mine = counts[keys[is_profiled] & KEY_MASK]
    assert not found[~is_profiled].any()
    if after == "rank":
        assert found[is_profiled].tolist() == levels_of(mine).tolist()
    elif after == "lfu":
        assert (np.diff(found[is_profiled][np.argsort(mine)]) >= 0).all() and found.max() > 15
    else:
        assert not found.any()


def test_rows_leave_by_the_policy_that_was_set(open_twin):
    twin = open_twin(cache_bytes=CACHE_BYTES, a=config(rows=FEW))
    table, store = twin.store.table("a"), twin.store
    store.import_profile(profile(a=dict.fromkeys(range(50), 9)))

    def stay() -> int:
        """Use 50 rows of a high count, then more others than there are slots; return how many of
        the 50 are still there."""
        table.lookup(np.arange(50))
        for low in range(50, FEW - 40, 40):
            table.lookup(np.arange(low, low + 40))
        return hits(store, lambda: table.lookup(np.arange(50)))

    assert [stay(), store.set_policy("rank"), stay()] == [0, None, 50]
    assert [store.set_policy("lru"), stay()] == [None, 0]
    store.set_policy("rank")
    twin.create_table("b", **config(rows=FEW, dim=8))  # a pool that comes later
    assert stay() == 50


def test_a_restored_table_goes_by_the_policy_that_was_set(open_twin):
    twin, rng = open_twin(cache_bytes=CACHE_BYTES, a=config(rows=FEW)), generator(812)
    twin.on("a", "update", np.arange(100), normal(rng, 100, 4))
    twin.store.set_policy("lfu")
    twin.checkpoint("c")
    twin.restore("c")
    assert twin.store.stats()["policy"] == "lfu"
    twin.reopen()
    assert twin.store.stats()["policy"] == "lru"


def test_a_policy_that_there_is_not_is_refused(open_twin):
    store = open_twin(policy="lfu", a=config()).store
    with refused(store, InvalidArgumentError, "lru, lfu, rank", "fifo"):
        store.set_policy("fifo")
    for name in ("", None, 0, ["lru"]):
        with refused(store, InvalidArgumentError):
            store.set_policy(name)
    assert store.stats()["policy"] == "lfu"

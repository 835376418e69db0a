"""Frequencies decide where rows are, and never what they are: ranks, warm-up, hot sets, profiles.

Each case trains beside its dense reference, whose digests are compared at the end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad
from embstore.errors import (
    CapacityError,
    InvalidArgumentError,
    TableNotFoundError,
)
from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile, TableProfile
from tests.conformance.cases import config, generator, normal, refused
from tests.conformance.sessions import until
from tests.conformance.twin import Twin

Open = Callable[..., Twin]
ROWS = 4000
CACHE_BYTES = 64 << 10


def profile(**tables: Any) -> Profile:
    """Return the profile of tables whose key k was accessed counts[k] times."""
    made = {}
    for name, counts in tables.items():
        counts = np.asarray(counts, np.int64)
        keys = np.flatnonzero(counts)
        made[name] = TableProfile(name, len(counts), keys, counts[keys], int(counts.sum()))
    return Profile(made)


def falling(rows: int = ROWS) -> Any:
    """Return counts by which lower keys are more frequent."""
    return np.arange(rows, 0, -1)


def hits(store: Any, lookup: Callable[[], Any]) -> int:
    """Return how many unique keys of a call were in the cache."""

    def so_far() -> int:
        return sum(pool["unique_hits"] for pool in store.stats()["cache"]["pools"])

    before = so_far()
    lookup()
    return so_far() - before


def slots(store: Any) -> int:
    return sum(pool["slots"] for pool in store.stats()["cache"]["pools"])


def train(twin: Twin, name: str, rng: Any, calls: int = 30, rows: int = ROWS) -> None:
    for _ in range(calls):
        keys = rng.integers(0, rows, 100)
        twin.on(name, "update", keys, normal(rng, 100, 4))


@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_warm_rows_are_the_most_frequent_ones_and_rows_stay_exact(
    open_twin: Open, policy: str
) -> None:
    twin, rng = open_twin(cache_bytes=CACHE_BYTES, policy=policy), generator(601)
    store = twin.store
    twin.create_table("a", **config(rows=ROWS))
    train(twin, "a", rng)
    store.import_profile(profile(a=falling()))
    told: list[tuple[int, int]] = []
    warmed = store.warm_cache(0.5, progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (warmed, warmed) and warmed > slots(store) // 3
    assert hits(store, lambda: store.lookup({"a": np.arange(warmed)})) == warmed
    train(twin, "a", rng)
    store.table("a").digest()


def test_rank_keeps_the_most_frequent_rows_of_all_tables_of_a_pool(open_twin: Open) -> None:
    """A table's coldest row may be hotter than another's hottest."""
    twin, rng = open_twin(cache_bytes=CACHE_BYTES, policy="rank"), generator(602)
    store = twin.store
    for name in ("a", "b"):
        twin.create_table(name, **config(rows=ROWS))
    store.import_profile(profile(a=np.full(ROWS, 3), b=np.full(ROWS, 50)))
    train(twin, "a", rng, calls=60)
    kept = slots(store) // 2
    store.lookup({"b": np.arange(kept)})
    for low in range(0, ROWS, 250):
        store.lookup({"a": np.arange(low, low + 250)})
    assert hits(store, lambda: store.lookup({"b": np.arange(kept)})) == kept
    train(twin, "b", rng)


def test_rank_goes_by_the_last_use_among_rows_of_one_count(open_twin: Open) -> None:
    twin = open_twin(cache_bytes=CACHE_BYTES, policy="rank")
    store = twin.store
    twin.create_table("a", **config(rows=ROWS))
    store.import_profile(profile(a=np.ones(ROWS)))
    size = slots(store) // 3
    for low in range(0, 5 * size, size):
        store.lookup({"a": np.arange(low, low + size)})
    assert hits(store, lambda: store.lookup({"a": np.arange(4 * size, 5 * size)})) == size


def test_profile_and_hot_set_outlive_a_restart(open_twin: Open) -> None:
    twin, rng = open_twin(cache_bytes=CACHE_BYTES, policy="rank"), generator(603)
    twin.create_table("a", **config(rows=ROWS, optimizer=RowWiseAdagrad(0.1)))
    train(twin, "a", rng)
    given = profile(a=falling())
    twin.store.import_profile(given)
    hot = HotSet({"a": np.arange(5, 105)}, version=3, threshold=2, bytes=100 * 32)
    assert twin.store.pin_hot_set(hot).pinned_rows == 100
    twin.reopen(policy="rank", warm_up=0.5)
    found = twin.store.export_profile(source="imported").tables["a"]
    assert found.keys.tolist() == given.tables["a"].keys.tolist()
    assert found.counts.tolist() == given.tables["a"].counts.tolist()
    again = twin.store.hot_set()
    assert (again.version, again.threshold, again.bytes) == (3, 2, 3200)
    assert again.tables["a"].tolist() == hot.tables["a"].tolist()
    until(lambda: twin.store.stats()["frequency"]["hot_set"]["pinned_rows"] == 100)
    warming = until(lambda: (w := twin.store.stats()["frequency"]["warming"])["of"] and w)
    until(lambda: not twin.store.stats()["frequency"]["warming"]["running"])
    assert warming["of"] > slots(twin.store) // 3
    train(twin, "a", rng)


def test_pretrained_rows_are_read_at_their_own_keys(open_twin: Open) -> None:
    """CachedEmbedding renumbers rows by rank and reads pretrained ones at the wrong places."""
    twin, rng = open_twin(cache_bytes=CACHE_BYTES, policy="rank"), generator(604)
    twin.create_table("a", **config(rows=ROWS))
    twin.store.import_profile(profile(a=rng.permutation(ROWS) + 1))
    twin.on("a", "assign", np.arange(ROWS), normal(rng, ROWS, 4))
    twin.store.warm_cache(0.7)
    train(twin, "a", rng)
    twin.store.checkpoint("trained")
    train(twin, "a", rng)
    twin.store.import_profile(profile(a=rng.permutation(ROWS) + 1))
    train(twin, "a", rng)


def test_a_hot_set_stays_through_a_scan_and_a_swap_keeps_what_both_have(open_twin: Open) -> None:
    twin, rng = open_twin(cache_bytes=CACHE_BYTES), generator(605)
    store = twin.store
    for name in ("a", "b"):
        twin.create_table(name, **config(rows=ROWS))
    train(twin, "a", rng)
    size = slots(store) // 4
    one = HotSet({"a": np.arange(size), "b": np.arange(10)}, version=1)
    two = HotSet({"a": np.arange(size // 2, size + size // 2)}, version=2)
    for hot in (one, two):
        facts = store.pin_hot_set(hot)
        assert (facts.version, facts.rows) == (hot.version, hot.row_count)
        assert facts.pinned_rows == hot.row_count
        assert store.pin_hot_set(hot) == facts  # asked for again
        train(twin, "b", rng, calls=60)
        for name, keys in hot.tables.items():
            assert hits(store, lambda n=name, k=keys: store.lookup({n: k})) == len(keys)
    assert store.pin_hot_set(None).pinned_rows == 0
    assert store.hot_set() is None
    store.check_integrity()
    train(twin, "a", rng)


def test_a_hot_set_meets_drop_restore_and_a_smaller_cache(open_twin: Open) -> None:
    twin, rng = open_twin(cache_bytes=4 * CACHE_BYTES), generator(606)
    store = twin.store
    for name in ("a", "b"):
        twin.create_table(name, **config(rows=ROWS))
    train(twin, "a", rng)
    twin.checkpoint("one")
    size = slots(store) // 3
    store.pin_hot_set(HotSet({"a": np.arange(size), "b": np.arange(50)}))
    store.resize_cache(2 * CACHE_BYTES)
    store.check_integrity()
    pinned = store.stats()["frequency"]["hot_set"]["pinned_rows"]
    assert 0 < pinned <= size + 50
    twin.drop_table("b")
    store.check_integrity()
    train(twin, "a", rng)
    twin.restore("one")
    store.check_integrity()
    train(twin, "a", rng)


def test_wrong_profiles_and_hot_sets(open_twin: Open) -> None:
    twin = open_twin(cache_bytes=CACHE_BYTES, policy="rank")
    store = twin.store
    twin.create_table("a", **config(rows=100))
    with refused(store, TableNotFoundError, "other", "rename"):
        store.import_profile(profile(a=[1], other=[1, 2]))
    with refused(store, InvalidArgumentError, "'a'", "100 rows", "101"):
        store.import_profile(profile(a=np.ones(101)))
    with refused(store, InvalidArgumentError, "'nobody'"):
        store.import_profile(profile(a=[1]), rename={"nobody": "a"})
    with refused(store, InvalidArgumentError, "one profile"):
        store.import_profile(profile(a=[1], b=[1]), rename={"b": "a"})
    with refused(store, TableNotFoundError, "'b'"):
        store.pin_hot_set(HotSet({"b": np.arange(3)}))
    with refused(store, InvalidArgumentError, "'a'", "100"):
        store.pin_hot_set(HotSet({"a": np.arange(101)}))
    for share in (0, -0.5, 1.5, float("nan"), True, "0.7"):
        with refused(store, InvalidArgumentError, "share"):
            store.warm_cache(share)
    with refused(store, InvalidArgumentError, '"counted"'):
        store.export_profile(source="guessed")
    store.pin_hot_set(HotSet({"a": np.arange(3)}, version=7))
    with refused(store, InvalidArgumentError, "above 7"):
        store.pin_hot_set(HotSet({"a": np.arange(4)}, version=7))
    store.import_profile(profile(b=np.ones(100)), rename={"b": "a"})
    twin.create_table("large", **config(rows=1 << 20))
    with refused(store, CapacityError, "three quarters", "cache_bytes"):
        store.pin_hot_set(HotSet({"large": np.arange(1 << 18)}, version=8))


def test_what_is_counted_is_what_was_looked_up(open_twin: Open) -> None:
    twin, rng = open_twin(count_rate=1.0), generator(607)
    store = twin.store
    for name in ("a", "b"):
        twin.create_table(name, **config(rows=ROWS))
    wanted = {name: np.zeros(ROWS, np.int64) for name in ("a", "b")}
    for _ in range(20):
        keys = {name: rng.zipf(1.3, 200) % ROWS for name in ("a", "b")}
        store.lookup(keys)
        store.lookup(keys, admit=False)
        for name in keys:
            np.add.at(wanted[name], keys[name], 1)
    found = store.export_profile()
    for name, counts in wanted.items():
        table = found.tables[name]
        assert table.keys.tolist() == np.flatnonzero(counts).tolist()
        assert table.counts.tolist() == counts[table.keys].tolist()
        assert (table.accesses, table.error, table.rows) == (20 * 200, 0, ROWS)
    assert found.trace.calls == 20 and found.store_id == store.store_id
    twin.reopen(count_rate=1.0)
    again = twin.store.export_profile().tables["a"]
    assert again.counts.tolist() == found.tables["a"].counts.tolist()
    twin.store.clear_counts()
    assert twin.store.export_profile().tables["a"].accesses == 0


def test_lfu_has_new_rows_stay_beside_rows_that_were_used_often(open_twin: Open) -> None:
    """CachedEmbedding's new row has count 0, so that two of them push each other out for ever."""
    twin = open_twin(cache_bytes=CACHE_BYTES, policy="lfu")
    store = twin.store
    twin.create_table("a", **config(rows=ROWS))
    full = slots(store)
    for _ in range(3):
        store.lookup({"a": np.arange(full)})
    full = slots(store)
    for _ in range(3):
        store.lookup({"a": np.arange(full)})
    new = np.arange(3000, 3010)
    for key in new:
        store.lookup({"a": [key]})
    assert hits(store, lambda: store.lookup({"a": new})) == len(new)

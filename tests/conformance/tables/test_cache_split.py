"""Pools of several row layouts share the cache by what each would miss, and no bit depends on it.

A trace has two tables, of rows of 8 and of 64: in one Zipf traffic that many slots help, in the
other a scan that none does, a loop, or Zipf traffic too. The best split is found by trying fixed
ones, as caches of keys alone.
"""

from collections import OrderedDict

import numpy as np
import pytest

from embstore import Constant, Sgd
from tests.unit.small_stores import generator, make_table, opened, pool_of, show

pytestmark = pytest.mark.needs("one_store")

CACHE_BYTES = 1 << 20
CALL_KEYS = 400
WARM, COUNTED = 300, 150
LAYOUTS = {"small": 8, "large": 64}


def zipf(rng, rows, skew, calls, keys=CALL_KEYS):
    shares = np.cumsum(np.arange(1, rows + 1) ** -skew)
    ranks = np.searchsorted(shares / shares[-1], rng.random((calls, keys)))
    return rng.permutation(rows)[ranks]


def scan(rng, rows, skew, calls):
    return (np.arange(calls * CALL_KEYS) % rows).reshape(calls, CALL_KEYS)


TRAFFIC = {
    "zipf in small rows, a scan in large ones": {
        "small": (zipf, 30_000, 0.8),
        "large": (scan, 90_000, 0.0),
    },
    "zipf in large rows, a scan in small ones": {
        "small": (scan, 90_000, 0.0),
        "large": (zipf, 10_000, 0.9),
    },
    "zipf in both": {"small": (zipf, 20_000, 0.7), "large": (zipf, 6_000, 1.0)},
    "a loop that would fit": {"small": (scan, 8_000, 0.0), "large": (zipf, 20_000, 0.6)},
}


def calls_of(name):
    rng = generator(17)
    traces = {
        table: kind(rng, rows, skew, WARM + COUNTED)
        for table, (kind, rows, skew) in TRAFFIC[name].items()
    }
    return [{table: keys[i] for table, keys in traces.items()} for i in range(WARM + COUNTED)]


def with_tables(path, **options):
    store = opened(path, cache_bytes=CACHE_BYTES, **options)
    for name, dim in LAYOUTS.items():
        make_table(store, name, dim=dim, rows=90_000, optimizer=Sgd(1.0), initializer=Constant(0.5))
    return store


def hits_of(store, calls):
    """Return the hits of the last calls, once the others have been made."""
    for call in calls[:WARM]:
        store.lookup(call)
    before = store.stats()["cache"]["pools"]
    for call in calls[WARM:]:
        store.lookup(call)
    after = store.stats()["cache"]["pools"]
    return sum(a["unique_hits"] - b["unique_hits"] for a, b in zip(after, before, strict=True))


def lru_hits(calls, slots):
    """Return the unique keys of the last calls that hit in an LRU cache."""
    cache, hits = OrderedDict(), 0
    for number, keys in enumerate(calls):
        unique = np.unique(keys).tolist()
        if number >= WARM:
            hits += sum(key in cache for key in unique)
        for key in unique:
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > slots:
            cache.popitem(last=False)
    return hits


def best_of_fixed(store, calls):
    """Return the hits of the best of many splits, none with less than a call takes, and what small
    rows have of it."""
    found = {}
    for part in np.arange(5, 81, 5) / 100:
        found[part] = 0
        for name, share in (("small", part), ("large", 1 - part)):
            slots = pool_of(store.table(name)).slots
            room = share * CACHE_BYTES - slots.sizes.staging_bytes
            found[part] += lru_hits([call[name] for call in calls], int(room / slots.slot_bytes))
    return max((hits, float(part)) for part, hits in found.items())


@pytest.mark.parametrize("name", TRAFFIC)
def test_hits_are_near_those_of_the_best_split(tmp_path, name):
    calls = calls_of(name)
    with with_tables(tmp_path / "measured") as store:
        measured = hits_of(store, calls)
        store.check_integrity()
        best, part = best_of_fixed(store, calls)
    with with_tables(tmp_path / "demand", cache_split="demand") as store:
        demand = hits_of(store, calls)
    show(f"{name}: {measured} measured, {demand} on demand, {best} at best (small: {part})")
    assert measured >= 0.97 * best
    assert measured >= demand


def test_a_scan_does_not_hide_what_a_rare_table_could_hit(tmp_path):
    """All of its misses were less than 2 % of those of the scan, and it got no slot for them."""
    scanned = (np.arange((WARM + COUNTED) * 1_200) % 90_000).reshape(WARM + COUNTED, 1_200)
    rare = zipf(generator(18), 2_000, 0.6, WARM + COUNTED, 40)
    calls = [{"small": s, "large": r} for s, r in zip(scanned, rare, strict=True)]
    with with_tables(tmp_path) as store:
        measured = hits_of(store, calls)
        slots = pool_of(store.table("large")).slots
        best = lru_hits(rare, int(0.7 * CACHE_BYTES / slots.slot_bytes))
    show(f"{measured} measured, {best} with seven tenths of the cache")
    assert measured >= 0.97 * best


def test_what_was_decided_is_in_the_stats(tmp_path):
    calls = calls_of("zipf in large rows, a scan in small ones")
    with with_tables(tmp_path) as store:
        before = store.stats()["cache"]["split"]
        assert before["how"] == "measured"
        assert before["decisions"] == 0
        assert [pool["bytes_aimed"] for pool in before["pools"]] == [0, 0]
        hits_of(store, calls)
        after = store.stats()["cache"]["split"]
    assert after["decisions"] > 0
    assert after["moved_bytes"] > 0
    small, large = after["pools"]
    assert (small["dim"], large["dim"]) == (8, 64)
    assert sum(pool["bytes_aimed"] for pool in after["pools"]) <= CACHE_BYTES
    assert large["bytes_aimed"] > small["bytes_aimed"]
    assert large["memory_bytes"] > small["memory_bytes"] > 0
    assert 0 < large["miss_rate_aimed"] <= large["miss_rate_before"] < 1


def test_on_demand_nothing_is_measured(tmp_path):
    calls = calls_of("zipf in large rows, a scan in small ones")
    with with_tables(tmp_path, cache_split="demand") as store:
        hits_of(store, calls)
        split = store.stats()["cache"]["split"]
    assert split["how"] == "demand"
    assert split["decisions"] == split["moved_bytes"] == 0


def test_the_same_calls_are_split_the_same(tmp_path):
    calls = calls_of("zipf in both")
    found = []
    for name in ("first", "second"):
        with with_tables(tmp_path / name) as store:
            found.append((hits_of(store, calls), store.stats()["cache"]["split"]))
    assert found[0] == found[1]

"""LRU and LFU against an exact simulation: what hits, what leaves, and that fame fades.

The simulation is the definition of embstore/cache/policies.py and scores.py over arrays by key. One
call touches its unique keys at one time; then the rows of lowest score make room for those that
were absent.

    lru   score = clock of the last touch
    lfu   score = (count, clock), the count that of touches since the row came; one that comes to a
          full cache starts with the next victim's, at least 1; halved after 10 touches a slot
"""

import numpy as np
import pytest

from embstore.cache.scores import ascending
from tests.unit.small_stores import generator, make_table, opened, pool_figures, resident_keys, show

SEED = 53
ROWS = 30_000
CACHE_BYTES = 120_000
TOLERANCE = 0.005
ABSENT = -1


class ExactCache:
    """A cache of `slots` rows that evicts exactly by the policy's definition."""

    def __init__(self, policy, slots):
        self.lfu = policy == "lfu"
        self.slots = slots
        self.counts = np.zeros(ROWS, np.int64)
        self.clocks = np.full(ROWS, ABSENT)
        self.clock = self.touches = self.resident = 0
        self.hits = {"unique": 0, "access": 0}
        self.keys = {"unique": 0, "access": 0}

    def call(self, keys):
        unique, occurrences = np.unique(keys, return_counts=True)
        self.clock += 1
        hit = self.clocks[unique] != ABSENT
        for kind, weights in (("unique", np.ones(len(unique), int)), ("access", occurrences)):
            self.hits[kind] += int(weights[hit].sum())
            self.keys[kind] += int(weights.sum())
        self._touch(unique[hit])
        self._make_room(int((~hit).sum()))
        self._touch(unique[~hit])
        if self.lfu and self.resident == self.slots and not hit.all():
            others = (self.clocks != ABSENT) & (self.clocks != self.clock)
            if others.any():
                self.counts[unique[~hit]] = max(1, self.counts[others].min())

    def rates(self):
        return {kind: self.hits[kind] / self.keys[kind] for kind in self.hits}

    def _touch(self, keys):
        self.counts[keys] += 1
        self.clocks[keys] = self.clock
        self.touches += len(keys)
        if self.touches >= 10 * self.slots:
            self.counts >>= 1
            self.touches = 0

    def _make_room(self, wanted):
        evicted = self.resident + wanted - self.slots
        self.resident = min(self.resident + wanted, self.slots)
        if evicted > 0:
            others = np.flatnonzero((self.clocks != ABSENT) & (self.clocks != self.clock))
            scores = self.lfu * (self.counts[others] << 40) | self.clocks[others]
            gone = others[np.argpartition(scores, evicted - 1)[:evicted]]
            self.counts[gone], self.clocks[gone] = 0, ABSENT


def zipf(rng, calls, batch, exponent=1.05):
    weights = np.arange(1, ROWS + 1) ** -exponent
    cumulated = np.cumsum(weights)
    draws = np.searchsorted(cumulated, rng.random((calls, batch)) * cumulated[-1])
    return rng.permutation(ROWS)[draws.clip(max=ROWS - 1)]


def zipf_trace(rng):
    return list(zipf(rng, 400, 512))


def shifting_trace(rng):
    """Nine in ten keys of a hot set of 900 that moves on by 60 every ten calls."""
    trace = []
    for call in range(400):
        hot = call // 10 * 60 + rng.integers(0, 900, 460)
        trace.append(np.concatenate([hot, rng.integers(0, ROWS, 52)]) % ROWS)
    return trace


def looping_trace(rng):
    """Half a loop over more rows than the cache has, half Zipf."""
    popular = zipf(rng, 400, 256)
    loop = (np.arange(400 * 256) % 4_000).reshape(400, 256)
    return list(np.concatenate([popular, loop], axis=1))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("trace", [zipf_trace, shifting_trace, looping_trace])
def test_hit_rates_are_those_of_the_exact_policy(tmp_path, trace, policy):
    calls = trace(generator(SEED))
    with opened(tmp_path, cache_bytes=CACHE_BYTES, policy=policy) as store:
        table = make_table(store, rows=ROWS)
        for keys in calls:
            table.lookup(keys)
        pool = pool_figures(store)
        exact = ExactCache(policy, pool["slots"])
        for keys in calls:
            exact.call(keys)
        assert pool["unique_keys"] == exact.keys["unique"]
        assert pool["accesses"] == exact.keys["access"]
        assert pool["evictions_clean"] > 10 * pool["slots"], "the trace must press on the cache"
        found = {
            "unique": pool["unique_hits"] / pool["unique_keys"],
            "access": pool["access_hits"] / pool["accesses"],
        }
        for kind, rate in exact.rates().items():
            show(
                f"{trace.__name__} {policy} {pool['slots']} slots, by {kind}: "
                f"embstore {found[kind]:.4f}, exact {rate:.4f}"
            )
        assert found == pytest.approx(exact.rates(), abs=TOLERANCE)
        store.check_integrity()


@pytest.mark.parametrize("spread", [1, 3, 1 << 16, 1 << 40, (1 << 51) - 1])
@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_scores_are_put_in_order_as_a_stable_sort_does(count, spread):
    scores = 1 << 40 | generator(SEED).integers(0, spread, count)
    assert np.array_equal(ascending(scores), np.argsort(scores, kind="stable"))


def test_lru_evicts_no_row_that_is_younger_than_one_that_stays(tmp_path):
    """Whichever of equally old rows leaves: scores.py calls its queue exact."""
    with opened(tmp_path, cache_bytes=CACHE_BYTES, policy="lru") as store:
        table = make_table(store, rows=ROWS)
        last, before = np.full(ROWS, ABSENT), set()
        for call, keys in enumerate(zipf_trace(generator(SEED))[:150]):
            table.lookup(keys)
            last[keys] = call
            now = resident_keys(table)
            gone = np.array(sorted(before - now), np.int64)
            stayed = np.array(sorted(before & now), np.int64)
            stayed = stayed[last[stayed] < call]
            if len(gone) and len(stayed):
                younger = int((last[gone] > last[stayed].min()).sum())
                assert younger == 0, (
                    f"call {call}: {younger} of {len(gone)} rows left that had been used after "
                    f"call {last[stayed].min()}, the last use of a row that stays"
                )
            before = now


def hits_of(table, store, keys):
    before = pool_figures(store)["unique_hits"]
    table.lookup(keys)
    return pool_figures(store)["unique_hits"] - before


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_set_that_was_hot_leaves(tmp_path, policy):
    """A set used by 200 calls, then never again, gives way to one that is used now."""
    with opened(tmp_path, cache_bytes=CACHE_BYTES, policy=policy) as store:
        table = make_table(store, rows=ROWS)
        old, new, passing = np.arange(700), np.arange(700, 1400), iter(range(2_000, ROWS, 150))
        for _ in range(200):
            table.lookup(old)
        for _ in range(150):
            start = next(passing)
            table.lookup(np.concatenate([new, np.arange(start, start + 150)]))
        assert pool_figures(store)["slots"] < 1_900
        assert hits_of(table, store, new) == len(new)
        assert hits_of(table, store, old) == 0

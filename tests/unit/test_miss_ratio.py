"""Hit rates as predicted, from the recording of a part of the keys, are those that stores measure.

Each store is one size of cache under one policy, and sees all calls of a trace from its first on;
the smallest cache has room for two calls. Predictions are for the slots that the store had in the
end. Largest differences are shown, in points.
"""

from functools import cache

import numpy as np
import pytest

import embstore
from embstore.config import Constant, Sgd
from embstore.hotness.counter import KeyCounter
from embstore.hotness.recorder import Recorder
from embstore.profiles.profile import Profile
from embstore_server.sizing.prediction import hit_rates
from tests.unit.small_stores import show

CALLS = 160
CALL_KEYS = 1_200
RATE = 0.15
CACHES = np.geomspace(250_000, 2_500_000, 10).astype(int).tolist()
POINTS = 2.0


def zipf(rng, rows, skew, count):
    """Return ranks in [0, rows), rank r with a probability that falls as (r + 1)**-skew."""
    shares = np.cumsum(np.arange(1, rows + 1) ** -skew)
    return np.searchsorted(shares / shares[-1], rng.random(count))


def steady(rng):
    """The same rows are hot all the time: three tables, Zipf 1.05."""
    of_rank = {f"t{rows}": rng.permutation(rows) for rows in (30_000, 12_000, 2_000)}
    for _ in range(CALLS):
        yield {name: keys[zipf(rng, len(keys), 1.05, CALL_KEYS)] for name, keys in of_rank.items()}


def drifting(rng):
    """The hot rows become others, all of them over a quarter of the tables: Zipf 0.8."""
    of_rank = {f"t{rows}": rng.permutation(rows) for rows in (40_000, 10_000)}
    for call in range(CALLS):
        moved = {name: call * len(keys) // (4 * CALLS) for name, keys in of_rank.items()}
        yield {
            name: keys[(zipf(rng, len(keys), 0.8, CALL_KEYS) + moved[name]) % len(keys)]
            for name, keys in of_rank.items()
        }


def mixed(rng):
    """Zipf 1.0 beside a loop, which comes round every 20 calls or so, and a scan, which never
    does."""
    yield from looping(rng, 100, 500)


def strict(rng):
    """The same, with a loop that comes round every 20 calls exactly."""
    yield from looping(rng, 300, 300)


def looping(rng, least, most):
    of_rank, begin = rng.permutation(20_000), 0
    for call in range(CALLS):
        end = begin + rng.integers(least, most + 1)
        yield {
            "zipf": of_rank[zipf(rng, 20_000, 1.0, CALL_KEYS)],
            "loop": np.arange(begin, end) % 6_000,
            "scan": np.arange(call * 100, (call + 1) * 100),
        }
        begin = end


@cache
def calls_of(trace):
    return list(trace(np.random.default_rng(61)))


@cache
def profile_of(trace):
    """Return the counts of all keys, and what a recorder of a part of them has."""
    calls = calls_of(trace)
    recorder, counters = Recorder(rate=RATE), {name: KeyCounter() for name in calls[0]}
    for call in calls:
        recorder.record([(name, keys, None) for name, keys in call.items()])
        for name, keys in call.items():
            counters[name].add(keys)
    tables = {name: counter.profile(name, 0) for name, counter in counters.items()}
    return Profile(tables, trace=recorder.trace())


def opened(path, calls, policy, cache_bytes, **options):
    """Open a store with the tables of the calls."""
    options = {"device": "cpu", "threads": 1, **options}
    store = embstore.open(path, policy=policy, cache_bytes=cache_bytes, **options)
    for name in calls[0]:
        store.create_table(name, dim=16, rows=50_000, optimizer=Sgd(0.1), initializer=Constant(0.0))
    return store


def measured(store, calls):
    """Make all calls; return the slots that there are then, and the hit rates, by access and by
    unique key."""
    for call in calls:
        store.lookup(call)
    store.check_integrity()
    pool = store.stats()["cache"]["pools"][0]
    assert not pool["calls_in_parts"]
    of_accesses = pool["access_hits"] / pool["accesses"]
    return pool["slots"], of_accesses, pool["unique_hits"] / pool["unique_keys"]


def stores(tmp_path, trace, policy, caches=CACHES, *, profile=None, warm_up=0.0):
    """Return the slots of stores of several sizes, (s,), and their hit rates, (2, s)."""
    calls, found = calls_of(trace), []
    for size in caches:
        with opened(tmp_path / str(size), calls, policy, size) as store:
            if profile is not None:
                store.import_profile(profile)
            if warm_up:
                store.warm_cache(warm_up)
            found.append(measured(store, calls))
    return np.array([slots for slots, *_ in found]), np.array([rates for _, *rates in found]).T


def predicted(trace, slots, policy, warm_up=0.0):
    """Return hit rates (2, s) from the recording."""
    rates = hit_rates(profile_of(trace), slots, policy, warm_up)
    assert rates.method == "recorded"
    return np.stack([rates.by_access, rates.by_unique])


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("trace", [steady, drifting, mixed])
def test_hit_rates_are_predicted_within_two_points(tmp_path, trace, policy):
    slots, found = stores(tmp_path, trace, policy)
    assert len(set(slots.tolist())) == len(CACHES)
    points = 100 * np.abs(predicted(trace, slots, policy) - found).max(axis=1)
    show(f"{trace.__name__}, {policy}: off by {points[0]:.2f} by access, {points[1]:.2f} by unique")
    assert points.max() < POINTS


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_where_a_loop_begins_to_fit_is_predicted_within_three_percent_of_the_slots(
    tmp_path, policy
):
    """A strict loop misses whole or hits whole: there a curve is a step, and a sample of the keys
    is a little to the left or right of it."""
    slots, found = stores(tmp_path, strict, policy)
    below, above = (
        predicted(strict, np.rint(slots * factor).astype(int), policy) for factor in (0.97, 1.03)
    )
    assert (found > below - POINTS / 100).all()
    assert (found < above + POINTS / 100).all()


@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_a_warm_up_is_predicted(tmp_path, policy):
    """By the profile of the calls that follow."""
    counted = profile_of(steady)
    options = {"caches": CACHES[1::4], "profile": counted, "warm_up": 0.7}
    slots, found = stores(tmp_path, steady, policy, **options)
    points = 100 * np.abs(predicted(steady, slots, policy, 0.7) - found).max()
    show(f"steady, {policy}, warm: off by {points:.2f}")
    assert points < POINTS


def test_rank_from_a_cold_start_is_predicted(tmp_path):
    slots, found = stores(tmp_path, drifting, "rank", CACHES[::3], profile=profile_of(drifting))
    assert np.abs(predicted(drifting, slots, "rank") - found).max() < POINTS / 100


def test_counts_alone_predict_lru_where_nothing_drifts(tmp_path):
    """What is said of LFU and of drift from counts alone is a bound, and no prediction."""
    slots, found = stores(tmp_path, steady, "lru", CACHES[::3])
    rates = hit_rates(
        Profile(profile_of(steady).tables), slots, "lru", accesses_per_call=3 * CALL_KEYS
    )
    assert rates.method == "counted"
    points = 100 * np.abs(np.stack([rates.by_access, rates.by_unique]) - found).max()
    show(f"steady, lru, from counts alone: off by {points:.2f}")
    assert points < POINTS


def test_a_store_predicts_itself(tmp_path):
    """From its own counts and recording, which has all keys here."""
    calls = calls_of(mixed)
    with opened(tmp_path, calls, "lfu", CACHES[4], count_rate=1.0) as store:
        slots, *found = measured(store, calls)
        rates = hit_rates(store.export_profile(), [slots], "lfu")
    assert rates.method == "recorded"
    assert np.abs([rates.by_access[0] - found[0], rates.by_unique[0] - found[1]]).max() < 0.02

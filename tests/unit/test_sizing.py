"""Predicted hit rates against plain simulations: of recordings, of samples of them, of counts."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.cache.policies import POLICIES, Lru
from embstore.errors import InvalidArgumentError
from embstore.hotness.counter import KeyCounter
from embstore.hotness.recorder import Recorder
from embstore.profiles.profile import Profile, TableProfile, Trace
from embstore_server.sizing.curves import curves
from embstore_server.sizing.prediction import hit_rates, lookahead_traffic
from tests.unit.small_stores import make_table, opened, resident_keys

CALLS = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=8), min_size=1, max_size=20)


def profile(calls, rate=1.0, rows=0):
    """Return the profile of calls, each {table: keys}, with a recording of a part of the keys."""
    recorder, counters = Recorder(rate=rate), {}
    for call in calls:
        arrays = {name: np.array(keys, np.int64) for name, keys in call.items()}
        recorder.record([(name, keys, None) for name, keys in arrays.items()])
        for name, keys in arrays.items():
            counters.setdefault(name, KeyCounter()).add(keys)
    tables = {name: counter.profile(name, rows) for name, counter in counters.items()}
    return Profile(tables, trace=recorder.trace())


def of_one(calls, rate=1.0):
    return profile([{"a": keys} for keys in calls], rate)


def zipf(rng, rows, skew, count):
    """Return keys, always the same ones often. Neighbours are not alike in heat."""
    shares = np.cumsum(np.arange(1, rows + 1) ** -skew)
    return np.searchsorted(shares / shares[-1], rng.random(count)) * 7919 % rows


# LRU


@settings(max_examples=200)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=60))
def test_lru_by_single_accesses_is_exact(keys):
    sizes = np.arange(1, 18)
    rates = hit_rates(of_one([[key] for key in keys]), sizes, "lru")
    for size, by_access, by_unique in zip(sizes, rates.by_access, rates.by_unique, strict=True):
        held, hits = OrderedDict(), 0
        for key in keys:
            hits += key in held
            held[key] = None
            held.move_to_end(key)
            if len(held) > size:
                held.popitem(last=False)
        assert by_access == by_unique == pytest.approx(hits / len(keys))


@settings(max_examples=200)
@given(CALLS)
def test_lru_with_room_for_everything_misses_first_uses_alone(calls):
    rates = hit_rates(of_one(calls), [16, 99], "lru")
    seen, hits, unique_hits = set(), 0, 0
    for keys in calls:
        hits += sum(key in seen for key in keys)
        unique_hits += len(seen & set(keys))
        seen |= set(keys)
    assert rates.by_access == pytest.approx(hits / sum(map(len, calls)))
    assert rates.by_unique == pytest.approx(unique_hits / sum(len(set(keys)) for keys in calls))


def test_a_call_that_ends_among_equals_is_a_fair_draw():
    """Of the four keys of the first call two have room beside the two of the second."""
    counted = of_one([[1, 2, 3, 4], [5, 6], [1, 2, 3, 4]])
    rates = hit_rates(counted, [4], "lru")
    assert rates.by_unique == pytest.approx([2 / 10])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_larger_than_the_cache_is_done_in_parts(policy):
    rates = hit_rates(of_one([range(100)] * 3), [10, 100], policy)
    assert rates.by_unique[0] <= 0.02
    assert rates.by_unique[1] == pytest.approx(2 / 3)


# Policies


def test_rank_keeps_the_most_accessed():
    """Key 1 is accessed most; the others alternate, and would push it out of an LRU cache."""
    calls = [[1], [2], [3], [1], [4], [5], [1], [6], [7], [1]]
    counted = of_one(calls)
    assert hit_rates(counted, [2], "lru").by_access == 0.0
    assert hit_rates(counted, [2], "rank").by_access == pytest.approx(0.3)


def test_a_row_without_a_profile_leaves_first_under_rank():
    counted = of_one([[1], [2], [1], [2], [9], [1], [2]])
    known = counted.tables["a"]
    without_9 = TableProfile("a", 0, known.keys[:2], known.counts[:2], 6)
    found = Profile({"a": without_9}, trace=counted.trace)
    assert hit_rates(found, [3], "rank").by_access == pytest.approx(4 / 7)
    assert hit_rates(found, [2], "rank").by_access == pytest.approx(3 / 7)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_warm_up_saves_the_first_misses(policy):
    counted = of_one([[1, 2], [1, 3], [1, 2, 3]])
    cold, warm = (hit_rates(counted, [4], policy, warm_up) for warm_up in (0.0, 0.75))
    assert cold.by_unique == pytest.approx([4 / 7])
    assert warm.by_unique == 1.0
    part = hit_rates(counted, [4], policy, 0.5)
    assert part.by_unique == pytest.approx([6 / 7])


def test_a_warm_up_brings_the_most_accessed_last():
    """They are those that an LRU cache keeps when the first call takes half of it."""
    new, low, hot = np.arange(48).reshape(3, 16)
    counted = of_one([new, hot, low, hot, low, hot])
    rates = hit_rates(counted, [32], "lru", 1.0)
    assert rates.by_unique == pytest.approx(4 / 6)


# Samples of the keys


def test_without_counts_what_the_sample_lacks_counts_as_hits():
    """SHARDS-adj. The hottest key has half of the accesses and may be in the sample, or not."""
    rng = np.random.default_rng(68)
    calls = [np.append(zipf(rng, 20_000, 0.9, 300) + 1, np.zeros(300, int)) for _ in range(100)]
    for key in range(4):
        counted = of_one([np.where(keys == 0, 10**6 + key, keys) for keys in calls], rate=0.2)
        whole = hit_rates(of_one(calls), [3_000], "lru").by_access
        part = hit_rates(Profile({}, trace=counted.trace), [3_000], "lru").by_access
        assert np.abs(part - whole).max() < 0.03


@pytest.mark.parametrize("policy", ["lru", "lfu", "rank"])
def test_sparse_keys_are_predicted_as_dense_ones_in_their_order(policy):
    """Their low bits are alike, and two tables have the same ones."""
    ids = np.array([[-(2**63), -(2**40), -2, 0, 2**40, 2**63 - 1], [-(2**40), 0, 1, 5, 6, 2**40]])
    rng = np.random.default_rng(3)
    calls = [{name: rng.integers(0, 6, 4) for name in "ab"} for _ in range(60)]
    renamed = [{"a": ids[0][call["a"]], "b": ids[1][call["b"]]} for call in calls]
    found, wanted = (hit_rates(profile(of), [3, 5, 8], policy) for of in (renamed, calls))
    assert found.by_access.tolist() == wanted.by_access.tolist()
    assert found.by_unique.tolist() == wanted.by_unique.tolist()


def test_a_part_of_the_tables_is_as_though_it_were_alone():
    rng = np.random.default_rng(70)
    calls = [{"a": zipf(rng, 500, 1.0, 50), "b": zipf(rng, 900, 0.7, 60)} for _ in range(80)]
    alone = profile([{"b": call["b"]} for call in calls])
    for policy in POLICIES:
        part = hit_rates(profile(calls), [50, 200], policy, tables=["b"])
        other = hit_rates(alone, [50, 200], policy)
        assert part.by_access == pytest.approx(other.by_access)
        assert part.by_unique == pytest.approx(other.by_unique)


# Counts alone


@pytest.mark.parametrize("policy", ["lfu", "rank"])
def test_counts_say_what_the_most_accessed_take(policy):
    counted = Profile({"a": TableProfile("a", 0, np.arange(4), np.array([1, 6, 3, 2]), 12)})
    rates = hit_rates(counted, [1, 2, 9], policy)
    assert rates.by_access == pytest.approx([5 / 12, 7 / 12, 8 / 12])
    assert np.isnan(rates.by_unique).all()
    warm = hit_rates(counted, [2], policy, 0.5)
    assert warm.by_access == pytest.approx([8 / 12])


@pytest.mark.parametrize("policy", POLICIES)
def test_calls_of_one_access_make_both_definitions_one(policy):
    rng = np.random.default_rng(72)
    counts = np.sort(rng.zipf(1.5, 300).clip(max=500))
    counted = Profile({"a": TableProfile("a", 0, np.arange(300), counts, int(counts.sum()))})
    rates = hit_rates(counted, [10, 100], policy, accesses_per_call=1.0)
    # But for two accesses to one key in one call, which chance would put there now and then.
    assert rates.by_unique == pytest.approx(rates.by_access, abs=0.01)


# Look-ahead


@settings(max_examples=200)
@given(CALLS)
def test_working_sets_are_averages_over_all_windows(calls):
    traffic = lookahead_traffic(of_one(calls), [4], "lru")
    sets = [set(keys) for keys in calls]
    for steps in range(1, len(calls) + 1):
        windows = [sets[low : low + steps] for low in range(len(calls) - steps + 1)]
        expected = np.mean([len(set.union(*window)) for window in windows])
        assert traffic.working_set(steps) == pytest.approx(expected)
    assert traffic.unique_rows == pytest.approx(np.mean([len(keys) for keys in sets]))


def test_a_step_fetches_what_misses():
    counted = of_one([[1, 2], [1, 3], [1, 2, 3]])
    traffic = lookahead_traffic(counted, [1, 3], "lru")
    assert traffic.unique_rows == pytest.approx(7 / 3)
    rates = hit_rates(counted, [1, 3], "lru")
    assert traffic.fetched_rows == pytest.approx((1 - rates.by_unique) * 7 / 3)
    assert traffic.fetched_rows[1] == pytest.approx(1.0)


def test_working_sets_of_a_sample_are_those_of_all():
    rng = np.random.default_rng(73)
    calls = [zipf(rng, 20_000, 0.9, 500) for _ in range(64)]
    whole, part = (lookahead_traffic(of_one(calls, rate), [500], "lru") for rate in (1.0, 0.2))
    assert part.unique_rows == pytest.approx(whole.unique_rows)
    for steps in (1, 4, 16, 64):
        assert part.working_set(steps) == pytest.approx(whole.working_set(steps), rel=0.03)


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 5], "lru"), "slots of shape .* found 0"),
        (([1.5], "lru"), "slots of shape .* found float64"),
        ((5, "lru"), "slots of shape"),
        (([5], "fifo"), "policy to be one of lru, lfu, rank, found 'fifo'"),
        (([5], "lru", 1.5), "warm_up to be a share from 0 to 1, found 1.5"),
        (([5], "lru", float("nan")), "warm_up"),
        (([5], "lru", 0.0, ["b"]), r"tables among \['a'\], found \['b'\]"),
    ],
)
def test_arguments_that_are_none(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        hit_rates(of_one([[1, 2], [2, 3]]), *arguments)


def test_a_profile_of_nothing():
    with pytest.raises(InvalidArgumentError, match="with accesses"):
        hit_rates(Profile({}), [5], "lru")
    with pytest.raises(InvalidArgumentError, match="accesses_per_call of at least 1"):
        hit_rates(Profile(of_one([[1]]).tables), [5], "lru", accesses_per_call=0.5)


def test_look_ahead_needs_calls():
    counted = of_one([[1], [2]])
    with pytest.raises(InvalidArgumentError, match="with a trace of calls"):
        lookahead_traffic(Profile(counted.tables), [5], "lru")
    traffic = lookahead_traffic(counted, [5], "lru")
    for steps in (0, 3):
        with pytest.raises(InvalidArgumentError, match="from 1 to the 2 recorded"):
            traffic.working_set(steps)


def test_a_trace_without_events_leaves_the_counts():
    counted = of_one([[1, 1, 2]])
    none = np.empty(0, np.int64)
    empty = Trace(1e-9, ("a",), 1, none.astype(np.int32), none.astype(np.int16), none, none, 2, 3)
    assert hit_rates(Profile(counted.tables, trace=empty), [5], "lru").method == "counted"


# Policies


class Recency(Lru):
    """LRU under another name."""

    name = "recency"


def test_a_policy_in_the_list_is_evicted_by_and_predicted(monkeypatch, tmp_path):
    monkeypatch.setitem(POLICIES, Recency.name, Recency())
    calls = [np.arange(start, start + 300) for start in range(0, 6_000, 200)]
    resident = {}
    for policy in ("lru", "recency"):
        with opened(tmp_path / policy, cache_bytes=60_000, policy=policy) as store:
            table = make_table(store)
            for keys in calls:
                table.lookup(keys)
            resident[policy] = resident_keys(table)
    assert resident["recency"] == resident["lru"]
    counted = of_one(calls)
    rates = [hit_rates(counted, [200, 500], policy).by_unique for policy in ("lru", "recency")]
    assert np.array_equal(*rates)
    with pytest.raises(InvalidArgumentError, match="lru, lfu, rank, recency, found 'fifo'"):
        hit_rates(counted, [10], "fifo")


def test_first_counts_under_lfu_are_shares_of_the_touches_between_halvings():
    counts = np.array([1, 3, 70, 5_000_000, 900])
    found = POLICIES["lfu"].first_counts(counts, 1_000_000, 500)
    assert found.tolist() == [1, 1, 1, 2047, 9]


@pytest.mark.parametrize("host_bytes", [0, 16 * 300])
def test_a_curve_says_what_both_levels_hit(host_bytes):
    """What level two has room for is what it has now, and what is free of its budget."""
    rng = np.random.default_rng(7)
    counted = profile([{"a": zipf(rng, 1000, 1.1, 200)} for _ in range(20)], rows=1000)
    pool = {"dim": 4, "optimizer": "sgd", "slots": 100, "host_slots": min(host_bytes, 100)}
    free = host_bytes - 16 * pool["host_slots"]
    cache = {"pools": [pool], "host_budget_bytes": free + 50, "host_memory_bytes": 50}
    table = {"dim": 4, "optimizer": "sgd", "rows": 1000, "row_bytes": 16}
    (curve,) = curves(counted, {"cache": cache, "tables": {"a": table}})
    below = [min(host_bytes // 16, 1000 - slots) for slots in curve.slots]
    assert curve.host_rows == below
    both = np.add(curve.slots, below)
    for policy, hits in curve.both.items():
        assert hits == hit_rates(counted, both, policy).by_access.tolist()
        assert (hits == curve.policies[policy]) == (host_bytes == 0)
    assert sorted(curve.cache_bytes) == curve.cache_bytes

"""The benchmark of frequencies: its trace, what it counts, its blocks and verdicts."""

import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embstore.profiles.profile import Profile, TableProfile
from tests.bench.hot.blocks import PARTS, Block, summary
from tests.bench.hot.contestants import BOUND, kinds
from tests.bench.hot.report import judge, to_offline, worst_auc_difference
from tests.bench.hot.scale import full, quick
from tests.bench.hot.stores import Written, pool
from tests.bench.hot.trace import FEATURES, LABELS, Trace, offline_rate, recall
from tests.bench.report import NotMeasuredError
from tests.unit.bench_runs import quick_results, reached

SCALE = replace(quick(), rows=(500, 3, 2_000), batch_samples=64, round_steps=4)


def profile(rate: float = 1.0, **tables: dict[int, int]) -> Profile:
    """Return a profile of counts by key."""
    found = {}
    for name, counts in tables.items():
        keys, values = np.array(list(counts)), np.array(list(counts.values()))
        found[name] = TableProfile(name, 100, keys, values, int(values.sum()))
    return Profile(found, rate=rate)


def block(samples: int, **seconds: float) -> Block:
    return Block(steps=2, samples=samples, seconds=dict.fromkeys(PARTS, 0.0) | seconds)


def results(**rates: float) -> dict[str, Any]:
    """Return results by the hit rates of contestants, all as fast as the bound."""
    found = {
        name: {"hit_rate_by_access": rate, "ratio": 1.0, "auc": 0.7} for name, rate in rates.items()
    }
    return {"training": {"trace": {"offline_rate": 0.9}, "contestants": found}}


def test_the_full_scale_is_the_one_that_the_goals_are_stated_for() -> None:
    scale = full()
    assert sum(scale.rows) == 33_762_577 and len(scale.rows) == 26
    assert scale.samples >= 300 * 2_048 and scale.slots == int(0.015 * 33_762_577)


def test_batches_and_chunks_have_every_sample_once_and_in_order() -> None:
    trace = Trace(SCALE)
    for pieces in (list(trace.batches()), list(trace.chunks())):
        for name, values in trace.columns.items():
            assert np.array_equal(np.concatenate([piece[name] for piece in pieces]), values)
    assert [len(batch[LABELS]) for batch in trace.batches()] == [64] * 8
    assert len(trace.held_out[LABELS]) == SCALE.held_out_samples


def test_the_trace_is_the_same_for_everybody() -> None:
    one, other = Trace(SCALE), Trace(SCALE)
    assert all(np.array_equal(one.columns[name], other.columns[name]) for name in one.columns)
    assert one.columns[FEATURES].dtype == one.columns[LABELS].dtype == np.float32
    for table, rows in one.rows.items():
        ids = one.columns[table].astype(np.int64)
        assert 0 <= ids.min() and ids.max() < rows


def test_a_profile_counts_the_samples_to_train_on() -> None:
    trace = Trace(SCALE)
    whole, half = trace.profile(), trace.profile(0.5)
    for table, ids in trace.keys_of(trace.columns).items():
        keys, counts = np.unique(ids, return_counts=True)
        found = whole.tables[table]
        assert found.keys.tolist() == keys.tolist()
        assert found.counts.tolist() == counts.tolist()
    accesses = {table.accesses for table in half.tables.values()}
    assert len(accesses) == 1, "samples are counted whole"
    assert 0.4 < accesses.pop() / SCALE.samples < 0.6
    assert half.rate == 0.5


def test_the_offline_rate_is_that_of_the_top_rows_over_all_tables() -> None:
    counted = profile(a={0: 6, 1: 1}, b={4: 2, 5: 1})
    assert offline_rate(counted, 1) == 0.6
    assert offline_rate(counted, 2) == 0.8
    assert offline_rate(counted, 100) == 1.0


def test_recall_is_of_accesses_and_counts_no_row_that_the_sample_has_not_seen() -> None:
    whole = profile(a={0: 50, 1: 30, 2: 20, 7: 10})
    assert recall(profile(0.1, a={0: 4, 2: 3}), whole, 2) == 70 / 80
    assert recall(profile(0.1, a={0: 4}), whole, 3) == 50 / 100
    assert recall(whole, whole, 2) == 1.0


def test_a_summary_is_of_medians() -> None:
    bound = [block(100, model=1.0), block(100, model=10.0), block(100, model=1.0)]
    blocks = [
        block(90, model=0.6, lookup=0.4),
        block(100, model=12.5),
        block(96, model=1.0, lookup=0.2),
    ]
    found = summary(blocks, bound)
    assert found["ratio"] == pytest.approx(0.8)
    assert found["samples_per_s"] == pytest.approx(80)
    assert found["step_ms"]["lookup"] == pytest.approx(100)
    assert (found["steps"], found["samples"]) == (6, 286)


def test_the_bound_comes_first_and_is_no_candidate_for_the_best() -> None:
    assert next(iter(kinds(full()))) == BOUND
    for rates, outcome in (({BOUND: 1.0}, None), ({BOUND: 1.0, "lru": 0.5}, True)):
        goals = reached(judge(results(**rates)))
        assert goals["samples/s of the best : all cached"] is outcome


@pytest.mark.parametrize(("rate", "outcome"), [(0.8801, True), (0.8799, False)])
def test_rank_may_be_two_points_below_the_offline_rate(rate: float, outcome: bool) -> None:
    found = results(**{BOUND: 1.0, "rank": rate})
    assert to_offline(found, "rank") == pytest.approx(100 * rate - 90)
    goals = reached(judge(found))
    assert goals["rank: hits by access above the offline rate"] is outcome


def test_the_auc_of_hot_batches_is_compared_with_that_of_the_order() -> None:
    found = results(**{BOUND: 1.0, "hot-50": 1.0, "hot-100": 1.0})
    found["training"]["contestants"]["hot-100"]["auc"] = 0.6985
    assert worst_auc_difference(found) == pytest.approx(0.0015)
    with pytest.raises(NotMeasuredError):
        worst_auc_difference(results(**{BOUND: 1.0}))


def test_a_copy_has_every_row_on_the_storage(tmp_path: pathlib.Path) -> None:
    written = Written(tmp_path, SCALE)
    store = written.open("copy", sum(SCALE.rows))
    try:
        written.bring_all(store)
        assert pool(store)["misses_initializer"] == 0
        assert store.stats()["tables"]["criteo/c03"]["resident_rows"] == 2_000
    finally:
        store.close()


def test_quick_benchmark_measures_every_contestant(tmp_path: pathlib.Path) -> None:
    found = quick_results("tests.bench.hot", tmp_path)
    contestants = found["training"]["contestants"]
    assert list(contestants) == list(kinds(quick()))
    assert {one["samples"] for one in contestants.values()} == {quick().samples}
    assert {one["misses_initializer"] for one in contestants.values()} == {0}
    in_order = [one for name, one in contestants.items() if not name.startswith("hot-")]
    assert len({one["auc"] for one in in_order}) == 1, "no policy changes a bit of a row"
    assert contestants[BOUND]["hit_rate_by_access"] == 1.0
    assert contestants["ahead-lru"]["hit_rate_by_unique"] == 1.0
    assert found["costs"]["counter"]["is_exact"]
    assert all(goal["reached"] is not None for goal in found["goals"])

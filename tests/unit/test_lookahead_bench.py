"""The benchmark of look-ahead: its waits, budgets, traces and verdicts."""

import pathlib
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.bench.lookahead.report import at_bound
from tests.bench.lookahead.scale import quick
from tests.bench.lookahead.stores import Written
from tests.bench.lookahead.sweep import knee
from tests.bench.lookahead.trace import Trace, WholeBatches
from tests.bench.lookahead.waits import SlowFiles
from tests.unit.bench_runs import quick_results, reached

SCALE = replace(quick(), rows=20_000, batch_keys=512)


def point(lookahead_ms: float, bound_ms: float, sets: float = 1.0) -> dict[str, Any]:
    steps = {"lookahead": {"step_ms": lookahead_ms}, "bound": {"step_ms": bound_ms}}
    return {"sets": sets, "contestants": steps}


@pytest.mark.parametrize(
    ("lookahead_ms", "bound_ms", "reached"),
    [(6.4, 6.0, True), (6.6, 6.0, False), (52.0, 50.0, True), (53.0, 50.0, False)],
)
def test_step_is_at_bound_within_five_percent_or_half_a_millisecond(
    lookahead_ms: float, bound_ms: float, reached: bool
) -> None:
    assert at_bound(point(lookahead_ms, bound_ms)) is reached


def test_knee_is_where_all_larger_caches_are_at_the_bound() -> None:
    steps = {1.0: 9.0, 2.0: 6.0, 3.0: 8.0, 4.0: 6.0, 8.0: 6.0}
    points = [point(ms, 6.0, sets) for sets, ms in steps.items()]
    assert knee(points) == 4.0
    assert knee([point(9.0, 6.0)]) is None


def test_a_call_waits_once_for_the_pieces_of_its_rows(tmp_path: pathlib.Path) -> None:
    files = SlowFiles(tmp_path)
    files.latency_s = 0.01
    begin = time.perf_counter()
    for _ in range(2):
        files.begin_call()
        for _ in range(100):
            files.reached("read")
    assert files.reads == 2
    assert time.perf_counter() - begin >= 0.02


def test_a_thread_without_calls_waits_for_each_read(tmp_path: pathlib.Path) -> None:
    files = SlowFiles(tmp_path)
    files.reached("commit:synced")
    files.reached("read")
    files.reached("read")
    assert files.reads == 2


def test_batches_are_unique_and_the_same_for_everybody() -> None:
    trace, other = Trace(SCALE, 1.05), Trace(SCALE, 1.05)
    for index in (3, 0):
        keys = trace.batch(index)
        assert (np.diff(keys) > 0).all()
        assert np.array_equal(keys, other.batch(index))
    whole = WholeBatches(SCALE, 1.2)
    assert all(len(np.unique(whole.batch(index))) == 512 for index in range(3))


def test_a_copy_has_every_row_and_the_slots_asked_for(tmp_path: pathlib.Path) -> None:
    written = Written(tmp_path, SCALE)
    opened = written.open("copy", 2_000)
    try:
        opened.table.lookup(np.arange(SCALE.rows, dtype=np.int64))
        pool = opened.pool()
        assert 2_000 <= pool["slots"] <= 2_100
        assert pool["misses_initializer"] == 0
    finally:
        opened.close()


def test_quick_benchmark_measures_sweep_and_planner(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench.lookahead", tmp_path, "sweep", "planner")
    points = results["sweep"]["Zipf 1.05"]["points"]
    assert [point["sets"] for point in points] == [1.0, 2.0, 4.0]
    assert results["planner"]["resident"]["collected_rows"] == 0
    goals = reached(results["goals"])
    assert goals["planning of 50,000 keys, victims logged"] is not None
    assert goals["look-ahead : LRU, the worst cell"] is None  # no cell was measured

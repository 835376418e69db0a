"""Every benchmark still runs: small, without peers. What its goals are about has been measured."""

import importlib.util

import pytest

from tests.unit.bench_runs import quick_results, reached

RUNS = {
    "bench engine storage": ["26 tables in one call : one table"],
    "bench service wire": ["lookup of one key beyond an echo", "crowd: slowest client : mean"],
    "bench engine shared transports": ["shared memory : in process"],
    "bench space durability standby": ["written per byte updated at random"],
    "bench stalls": ["the longest call of one key beside: fold"],
    "bench neighbour": [],
    "bench files": [],
    "bench.hot": ["samples/s of the best : all cached"],
    "bench.lookahead sweep planner": ["planning of 50,000 keys, victims logged"],
    "bench.shards": [],
}
"""Parts of a program, and names of goals that they measure."""


@pytest.mark.parametrize("run", RUNS)
def test_quick_benchmark_measures_its_parts(tmp_path, run):
    if "files" in run and importlib.util.find_spec("safetensors") is None:
        pytest.skip("needs the extra 'data'")
    program, *parts = run.split()
    results = quick_results(f"tests.{program}", tmp_path, *parts)
    assert results["skipped"].keys() <= {"cold_rows in the base"}  # which a slow disk may not fold
    assert set(parts) - {"engine", "service", "shared"} <= results.keys()
    goals = reached(results["goals"])
    assert all(goals[name] is not None for name in RUNS[run])

"""The benchmark still runs: small, without peers."""

import pathlib

import pytest

from tests.bench.greedy import ATTACKS
from tests.bench.shards.report import GOALS
from tests.unit.bench_runs import quick_results, reached


def test_quick_benchmark_measures_engine_and_storage(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench", tmp_path, "engine", "storage")
    assert {"embstore-100", "embstore-20", "embstore-5"} < results["lanes"].keys()
    assert {"write_back", "checkpoint", "digest", "checking"} <= results["storage"].keys()
    assert results["hardware"]["cores"] >= 1
    goals = reached(results["goals"])
    assert goals["26 tables in one call : one table"] is not None
    assert goals["all rows cached: faster than the best peer"] is None  # no peer ran


def test_quick_benchmark_measures_service_and_wire(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench", tmp_path, "service", "wire")
    assert results["skipped"] == {}
    assert results["lanes"].keys() == {"service", "service-26-tables"}
    assert {"stages_ms", "calls"} < results["lanes"]["service"].keys()
    wire = results["wire"]
    assert wire["one_key"]["lookup"]["request_bytes"] > 0
    assert all(size["engine_ms"] > 0 for size in wire["bulk"]["up"].values())
    assert len(wire["crowd"]["calls"]) == wire["crowd"]["clients"]
    goals = reached(results["goals"])
    for name in ("lookup of one key beyond an echo", "crowd: slowest client : mean"):
        assert goals[name] is not None
    assert goals["service: faster than Redis (target 4)"] is None  # no peer ran


def test_quick_benchmark_measures_transports(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench", tmp_path, "engine", "shared", "transports")
    assert results["skipped"] == {}
    assert "shared-memory" in results["lanes"]
    transports = results["transports"]
    assert {"in process", "shared_memory", "grpc", "echo"} == transports["one_key"].keys()
    ways = {"memory copy", "in process", "shared memory", "gRPC unary", "bare gRPC stream"}
    assert all(ways < found.keys() for found in transports["sizes"].values())
    assert all(rate > 0 for found in transports["readers"].values() for rate in found.values())
    goals = reached(results["goals"])
    for name in ("shared memory : in process", "shared memory: 16 readers : one"):
        assert goals[name] is not None


def test_quick_benchmark_measures_what_durability_costs(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench", tmp_path, "space", "durability", "standby")
    assert len(results["space"]["sizes"]) == 2
    assert {"served", "embedded", "replay"} == results["durability"].keys()
    following = results["standby"]["following"]
    assert following["step_ms"].keys() == {"alone", "followed", "waits"}
    assert following["lag"]["after_one_key_ms"] > 0
    assert "standby, while its leader trains" in following["lookup_ms"]
    goals = reached(results["goals"])
    assert goals["written per byte updated at random"] is not None


def test_quick_benchmark_measures_what_long_works_do_to_small_calls(
    tmp_path: pathlib.Path,
) -> None:
    results = quick_results("tests.bench", tmp_path, "stalls")
    stalls = results["stalls"]["served"]
    assert {"nothing", "digest", "integrity", "checkpoint", "fold", "warm-up"} < stalls.keys()
    assert all(0 < found["median_ms"] <= found["stall_ms"] for found in stalls.values())
    assert results["stalls"]["drained"].keys() == {"idle_s", "busy_s", "drain_s"}
    assert reached(results["goals"])["the longest call of one key beside: fold"] is not None


def test_quick_benchmark_measures_a_quiet_caller_beside_a_greedy_one(
    tmp_path: pathlib.Path,
) -> None:
    results = quick_results("tests.bench", tmp_path, "neighbour")
    found = results["neighbour"]["beside"]
    assert found.keys() == {"nothing", *ATTACKS}
    assert all(0 < one["step_ms"] <= one["step_p99_ms"] for one in found.values())


def test_quick_benchmark_measures_files_beside_a_copy(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors", reason="needs the extra 'data'")
    results = quick_results("tests.bench", tmp_path, "files")
    found = results["files"]["tables"]
    for kind in ("safetensors", "parquet", "npy"):
        assert all(found[kind][way]["ratio"] > 0 for way in ("export", "import"))


def test_shards_have_calls_and_bytes_in_proportion(tmp_path: pathlib.Path) -> None:
    results = quick_results("tests.bench.shards", tmp_path)
    for shards, ways in results["counts"].items():
        assert ways["calls"]["calls"] == 2 * int(shards)
        assert ways["late"]["verbs"]["UpdateStep"] == int(shards)
    assert results["router"].keys() == {"2", "3"}
    assert results["steps"].keys() == {"alone", "1", "2", "3"}
    assert reached(results["goals"]).keys() == {goal.name for goal in GOALS}

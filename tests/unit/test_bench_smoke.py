"""The benchmark still runs: small, without peers. What it measures then means nothing."""

import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def results_of(folder: pathlib.Path, *parts: str) -> dict[str, Any]:
    path = folder / "results.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--only", *parts]
    command += ["--json", str(path), "--dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written: dict[str, Any] = json.loads(path.read_text())
    assert written["failed"] == {}
    return written


def judged(results: dict[str, Any]) -> dict[str, bool | None]:
    return {goal["name"]: goal["reached"] for goal in results["goals"]}


def test_quick_benchmark_measures_engine_and_storage(tmp_path: pathlib.Path) -> None:
    results = results_of(tmp_path, "engine", "storage")
    assert {"embstore-100", "embstore-20", "embstore-5"} < results["lanes"].keys()
    assert {"write_back", "checkpoint", "digest"} <= results["storage"].keys()
    assert results["hardware"]["cores"] >= 1
    goals = judged(results)
    assert goals["26 tables in one call : one table"] is not None
    assert goals["all rows cached: faster than the best peer"] is None  # no peer ran


def test_quick_benchmark_measures_service_and_wire(tmp_path: pathlib.Path) -> None:
    results = results_of(tmp_path, "service", "wire")
    assert results["skipped"] == {}
    assert results["lanes"].keys() == {"service", "service-26-tables"}
    assert {"stages_ms", "calls"} < results["lanes"]["service"].keys()
    wire = results["wire"]
    assert wire["one_key"]["lookup"]["request_bytes"] > 0
    assert all(0 < size["engine_ms"] < size["call_ms"] for size in wire["bulk"]["up"].values())
    assert len(wire["crowd"]["calls"]) == wire["crowd"]["clients"]
    goals = judged(results)
    for name in ("lookup of one key beyond an echo", "crowd: slowest client : mean"):
        assert goals[name] is not None
    assert goals["service: faster than Redis (target 4)"] is None  # no peer ran

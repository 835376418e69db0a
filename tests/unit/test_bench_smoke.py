"""The benchmark still runs: small, without peers. What it measures then means nothing."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_quick_benchmark_measures_engine_and_storage(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--only", "engine", "storage"]
    command += ["--json", str(results), "--dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    written = json.loads(results.read_text())
    assert written["failed"] == {}
    assert {"embstore-100", "embstore-20", "embstore-5"} < written["lanes"].keys()
    assert {"write_back", "checkpoint", "digest"} <= written["storage"].keys()
    assert written["hardware"]["cores"] >= 1
    judged = {goal["name"]: goal["reached"] for goal in written["goals"]}
    assert judged["26 tables in one call : one table"] is not None
    assert judged["all rows cached: faster than the best peer"] is None  # no peer ran

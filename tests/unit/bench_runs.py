"""Small runs of the benchmarks as programs. Their figures mean nothing."""

import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def quick_results(
    module: str, folder: pathlib.Path, *parts: str, size: str = "quick"
) -> dict[str, Any]:
    """Run parts of a benchmark (all, where none is named), in which nothing may break."""
    path = folder / "results.json"
    command = [sys.executable, "-m", module, f"--{size}", "--json", str(path), "--dir", str(folder)]
    command += ["--only", *parts] if parts else []
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads(path.read_text())
    assert results["failed"] == {}
    return results


def reached(goals: list[dict[str, Any]]) -> dict[str, bool | None]:
    """Return of each goal whether it was reached; None: nothing was measured."""
    return {goal["name"]: goal["reached"] for goal in goals}

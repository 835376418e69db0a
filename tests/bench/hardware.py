"""A description of what a run ran on: the machine, the packages and the commit. It is stored with
all figures.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

from tests.bench.disk import file_system

PACKAGES = (
    "numpy",
    "numba",
    "grpcio",
    "protobuf",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "fbgemm-gpu-cpu",
    "redis",
    "hiredis",
)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _line_of(path: str, name: str) -> str:
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def _output_of(*command: str) -> str | None:
    with contextlib.suppress(OSError):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def packages() -> dict[str, str | None]:
    """Return the version of each package, None where it is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        versions[name] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    versions["redis-server"] = _output_of("redis-server", "--version")
    return versions


def describe(data_dir: str) -> dict[str, Any]:
    """Return the JSON's head. The load average tells whether the machine was shared."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _output_of("git", "rev-parse", "HEAD"),
        "git_changed": bool(_output_of("git", "status", "--porcelain")),
        "hardware": {
            "cpu_model": _line_of("/proc/cpuinfo", "model name"),
            "cores": len(os.sched_getaffinity(0)),
            "memory": _line_of("/proc/meminfo", "MemTotal"),
            "kernel": platform.release(),
            "file_system": file_system(data_dir),
            "load_average": os.getloadavg(),
        },
        "packages": packages(),
    }

"""`embstore cluster start`, killed at random moments: the next one finishes, or says that the
cluster runs, and `stop` then leaves no process."""

import subprocess
import sys
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra 'ray': make test-cluster")

import embstore
from embstore_server.cli import exits
from tests.cluster.running import PATIENCE_S, embstore_command
from tests.cluster.test_on_ray import connected, train

KILLS, SHARDS = 4, 2


def started(data: Path) -> "subprocess.Popen[str]":
    words = "--data", str(data), "--shards", str(SHARDS), "--cache-bytes", "16MiB"
    return subprocess.Popen(
        [sys.executable, "-m", "embstore_server", "cluster", "start", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(data: Path) -> bool:
    """Start a cluster to the end; return whether it was not running already."""
    process = started(data)
    _, errors = process.communicate(timeout=PATIENCE_S)
    was_running = process.returncode == exits.USAGE and "runs: see embstore" in errors
    assert process.returncode == 0 or was_running, errors
    return not was_running


def processes_of(data: Path) -> list[str]:
    """Return the commands of all processes of the Ray of a cluster."""
    token, found = f"RAY_AUTH_TOKEN_PATH={data / 'ray.token'}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if token in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            continue
    return [command for command in found if command]  # a zombie has none


def stopped(data: Path) -> None:
    embstore_command("stop", "--data", str(data))
    until = monotonic() + PATIENCE_S
    while left := processes_of(data):
        assert monotonic() < until, left
    assert not (data / "ray.json").exists()


def test_a_start_that_was_killed_is_finished_by_the_next(tmp_path: Path, soak: int) -> None:
    rng = np.random.default_rng([20261128, soak])
    with embstore.open(tmp_path / "one", device="cpu") as store:
        digest = train(store)
    begin = monotonic()
    assert finished(tmp_path / "whole")
    took = monotonic() - begin
    stopped(tmp_path / "whole")
    cut = 0
    for number in range(KILLS):
        data = tmp_path / f"cut-{number}"
        process = started(data)
        try:
            process.wait(took * rng.uniform(0.05, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        cut += process.returncode != 0
        finished(data)
        found = embstore_command("status", "--data", str(data))
        assert [shard["ready"] for shard in found["shards"]] == [True] * SHARDS
        with connected(data) as store:
            assert train(store) == digest
        stopped(data)
        assert finished(data)
        with connected(data) as store:
            assert store.table("t").digest() == digest
        stopped(data)
    assert cut, "no kill came before the end"

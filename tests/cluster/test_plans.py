"""The coordinator's file, and the server's process that ends with its parent; without a Ray."""

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from embstore.errors import CorruptTableError
from embstore.sharding import ShardMap
from embstore_cluster.coordinator import PATH, Coordinator, kept_plan
from embstore_cluster.plan import Plan, Resources

PARENT = """
import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-m", "embstore_cluster.process", str(os.getpid()),
    "serve", "--data", sys.argv[1], "--listen", "127.0.0.1:0", "--admin", "off",
    "--log-format", "json"], stderr=subprocess.PIPE, text=True)
for line in child.stderr:
    if '"ready"' in line:
        break
print(child.pid, flush=True)
sys.stdin.read()
"""


def plan(folder: Path) -> Plan:
    shard_map = ShardMap.even("ads", ["127.0.0.1:1", "127.0.0.1:2"])
    admins = "127.0.0.1:3", "127.0.0.1:4"
    return Plan("a", str(folder), shard_map, admins, ("n", "n"), Resources(2.0), ("-x",), "first")


def test_a_coordinator_is_what_its_file_is(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    assert kept_plan(str(folder)) is None
    first = Coordinator(plan(folder))
    assert first.starting(1) == first.starting(1) == kept_plan(str(folder)) == plan(folder)
    again = Coordinator(plan(folder))  # as Ray starts it again
    assert (again.plan(), again.starts()) == (plan(folder), [0, 2])
    other = replace(plan(folder), flags=(), life="second")
    started = Coordinator(other)  # as the cluster is started again
    assert (started.plan(), started.starts(), kept_plan(str(folder))) == (other, [0, 0], other)


@pytest.mark.parametrize("content", ["", "{}", '{"plan": {}, "starts": []}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / PATH).write_text(content)
    with pytest.raises(CorruptTableError, match=PATH):
        kept_plan(str(tmp_path))


def test_a_server_ends_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "store")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    with os.fdopen(server, "rb", buffering=0):
        ready, _, _ = select.select([server], [], [], 300.0)
        assert ready, "the server outlived its parent"


def test_a_server_whose_parent_has_gone_does_not_start(tmp_path: Path) -> None:
    words = ["-m", "embstore_cluster.process", "1", "serve", "--data", str(tmp_path / "store")]
    done = subprocess.run([sys.executable, *words], check=False, timeout=300)
    assert done.returncode == 1
    assert not (tmp_path / "store").exists()

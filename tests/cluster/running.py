"""A cluster on a Ray of its own, by the command line, and the processes of its trainers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import Any

import ray

from embstore_cluster.coordinator import kept_plan
from embstore_cluster.plan import Plan

PATIENCE_S = 300.0
ROOT = Path(__file__).parents[2]


def embstore_command(*words: str) -> Any:
    """Run a command line of clusters in a process of its own, and return its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "embstore_server", "cluster", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def running(data: Path, *words: str) -> Iterator[Path]:
    """Start a cluster in `data`, and stop it."""
    embstore_command("start", "--data", str(data), "--cache-bytes", "16MiB", *words)
    try:
        yield data
    finally:
        embstore_command("stop", "--data", str(data))
        ray.shutdown()  # this process was connected to the one that has ended
    assert not (data / "ray.json").exists()


def plan_of(data: Path) -> Plan:
    """Return the plan of the cluster in `data`."""
    plan = kept_plan(str(data))
    assert plan is not None
    return plan


@dataclass(frozen=True)
class Said:
    """What a trainer has said."""

    rank: int
    what: str
    number: int
    at_s: float
    """By the system's monotonic clock."""


class Trainers:
    """Processes that each train a rank, and what they say. Any thread."""

    def __init__(self, address: str, steps: int, ranks: int, log: Path) -> None:
        self.said: list[Said] = []
        self.finished = 0
        """The last step that any rank has finished."""
        self._words = address, steps
        self._log = log
        self._changed = Condition()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._readers: list[Thread] = []
        for rank in range(ranks):
            self._start(rank)

    def _start(self, rank: int) -> None:
        address, steps = self._words
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.trainer", address, str(rank), str(steps)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._processes[rank] = process
        reader = Thread(target=self._read, args=(rank, process))
        reader.start()
        self._readers.append(reader)

    def _read(self, rank: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                what, number, at_s = line.split()
                with self._changed:
                    self.said.append(Said(rank, what, int(number), float(at_s)))
                    if what == "finished":
                        self.finished = max(self.finished, int(number))
                    self._changed.notify_all()
        process.wait()
        with self._changed:
            self._changed.notify_all()

    def kill(self, rank: int) -> float | None:
        """Kill a trainer, and start it again; return when it was killed. None: it had ended."""
        process = self._processes[rank]
        at_s = None if process.poll() is not None else kill_process(process.pid)
        if at_s is not None:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
            self._start(rank)
        return at_s

    def wait_for(self, step: int) -> bool:
        """Wait until a step is finished; return whether it is: False, a trainer has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.finished >= step or self._are_over(), PATIENCE_S)
            return self.finished >= step

    def _are_over(self) -> bool:
        return any(process.poll() is not None for process in self._processes.values())

    def wait(self) -> list[int]:
        """Let them do their last steps, and wait until all have ended; return their exit
        statuses."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        return [process.wait(PATIENCE_S) for process in self._processes.values()]

    def end(self) -> None:
        """End those that still run."""
        for process in self._processes.values():
            process.kill()
            assert process.stdin is not None
            process.stdin.close()
        for reader in self._readers:
            reader.join()


@dataclass(frozen=True)
class Kill:
    """One process was killed."""

    what: str
    at_s: float
    finished: int
    """The last step that was finished then."""

    def until_next_s(self, said: list[Said]) -> float:
        """Return the seconds to the end of the first step that was begun afterwards: the one that
        was under way may have been sent by all."""
        later = [
            one.at_s
            for one in said
            if one.what == "finished" and one.number > self.finished + 1 and one.at_s > self.at_s
        ]
        return min(later) - self.at_s


def kill_process(pid: int) -> float | None:
    """Kill a process; return when; None: it had gone."""
    try:
        at_s = monotonic()
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return at_s

"""The actor of a shard: it keeps the shard's server running in a separate process.

A server needs a process of its own: its main thread runs the event loop and handles signals, its
engine thread must not share the interpreter with threads of Ray's worker, and umask, allocator
arenas and thread switching are settings of the process. So a shard is an unchanged `embstore
serve`, as a child process that ends with the actor (process.py).

This actor restarts a server that ends by itself. If the server had been ready, it is restarted at
once; no Ray worker has to start for this. If it was not ready, for example because the directory
belongs to another shard, it is restarted after a pause that doubles each time; during the pause
`state` contains the server's last log lines. If the server's device has failed, the actor ends, so
that Ray may give it another device. A server that has lost commands ends, and starts again when the
cluster has gone back (`rollback`).
"""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import ray

from embstore.storage.files import Files
from embstore_cluster import rollback
from embstore_cluster.plan import NAMESPACE, Plan, coordinator_of
from embstore_server.cli.exits import DEVICE_FAILED

_PAUSE_FIRST_S, _PAUSE_MAX_S = 1.0, 30.0
_LINES_KEPT = 50
_PROCESS = sys.executable, "-m", "embstore_cluster.process"


class Shard:
    """Keeps the server of one shard running. Ray calls it in several threads."""

    def __init__(self, name: str, shard: int) -> None:
        self._name, self._shard = name, shard
        self._changed = Condition()
        self._is_ready = self._is_stopping = False
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._error = ""
        self._process: subprocess.Popen[str] | None = None
        self._number = 0  # how many times the cluster had gone back when the process was started
        self._least = 0  # the least such number for a process to be started with
        self._status: int | None = None
        self._thread = Thread(target=self._keep, name="embstore-keep-server", daemon=True)
        self._thread.start()

    # Status

    def state(self) -> dict[str, Any]:
        """Return whether the server is ready, its process id, and the reason if it is not ready."""
        with self._changed:
            pid = self._process.pid if self._process is not None else None
            return {"ready": self._is_ready, "pid": pid, "error": self._error}

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait until the server is ready or was refused, or the timeout has passed; return the
        state."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._error, timeout_s)
        return self.state()

    def stop(self, timeout_s: float) -> int | None:
        """End the server by SIGTERM, and return its exit status. 0: everything is committed. None:
        no server was running. The actor does not start the server again."""
        with self._changed:
            self._is_stopping = True
            if self._process is not None:
                self._process.send_signal(signal.SIGTERM)
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return self._status

    # Going back

    def labels(self, directory: str) -> dict[str, str]:
        """Return the checkpoints on the shard's disk, as `rollback.labels` does."""
        return rollback.labels(Path(directory))

    def begin_again(self, number: int) -> None:
        """End the server if it was started before the cluster went back for the `number`th time.
        Return when no such server runs any more."""
        with self._changed:
            self._least = max(self._least, number)
            if self._process is not None and self._number < number:
                self._process.kill()
            self._changed.wait_for(lambda: self._process is None or self._number >= number)

    # The server runs in a separate thread, because the system ends a child with the thread that
    # started it.

    def _keep(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while not self._is_stopping:
            try:
                was_ready = self._serve(self._plan())
            except Exception as exc:  # `state` shows the error, and the start is tried again
                was_ready, self._error = False, f"{type(exc).__name__}: {exc}"
            with self._changed:
                self._changed.notify_all()
                if was_ready:
                    pause_s = _PAUSE_FIRST_S
                else:
                    self._changed.wait_for(lambda: self._is_stopping, pause_s)
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _plan(self) -> Plan:
        plan: Plan = ray.get(self._coordinator().starting.remote(self._shard))
        return plan

    def _coordinator(self) -> Any:
        return ray.get_actor(coordinator_of(self._name), namespace=NAMESPACE)

    def _serve(self, plan: Plan) -> bool:
        """Run the server until it ends; return whether it was ready."""
        files = Files(plan.data)
        Path(plan.data).mkdir(parents=True, exist_ok=True)
        map_file = f"shard-{self._shard}.map.json"
        files.replace(map_file, plan.shard_map.to_json().encode() + b"\n")
        words = plan.words(self._shard, Path(files.path(map_file)))
        own = {name: v for name, v in os.environ.items() if not name.startswith("EMBSTORE_")}
        with self._changed:
            if self._is_stopping or plan.back.number < self._least:
                return not self._is_stopping
            self._number = plan.back.number
            self._process = process = subprocess.Popen(
                [*_PROCESS, str(os.getpid()), *rollback.words(plan, self._shard), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=own,
            )
        was_ready = self._read(process)
        status = process.wait()
        with self._changed:
            self._process, self._is_ready = None, False
            self._status = status
            goes_back = status == rollback.LOST or plan.back.number < self._least
            if not self._is_stopping and not goes_back:
                last = "\n".join(self._lines)
                self._error = f"the server ended with status {status}:\n{last}"
        if status == rollback.LOST:
            ray.get(self._coordinator().lost.remote(plan.back.number))
            return True
        if status == DEVICE_FAILED and not self._is_stopping:
            os._exit(status)
        return was_ready

    def _read(self, process: "subprocess.Popen[str]") -> bool:
        """Copy the server's log to the log of the actor until the server ends; return whether the
        server was ready."""
        assert process.stderr is not None
        was_ready = False
        with process.stderr:
            for line in process.stderr:
                sys.stderr.write(line)
                with self._changed:
                    self._lines.append(line.rstrip())
                    if _is_ready(line):
                        was_ready = self._is_ready = True
                        self._error = ""
                        self._changed.notify_all()
        return was_ready


def _is_ready(line: str) -> bool:
    with suppress(ValueError):
        entry = json.loads(line)
        return isinstance(entry, dict) and entry.get("event") == "ready"
    return False

"""The actor of a shard: it keeps the shard's server running, as a process of its own.

A server has its process for itself: its main thread has the event loop and the signals, its engine
thread shares the interpreter with no threads of Ray's worker, and its umask, its allocator's arenas
and its thread switching are its own. Therefore a shard is `embstore serve`, unchanged, and a child
of the actor, that ends with it (process.py).

A server that ends by itself is started again here, at once where it had been ready: that takes the
time of its start, and not also that of a worker of Ray. One that was not ready, as on a directory
of another shard, is tried again after a pause that doubles; until then `state` has its last words.
One whose device failed ends its actor, so that Ray may give it another. One that has lost commands
ends, and begins again when the cluster has gone back (`rollback`).
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
    """Keeps the server of one shard running. Ray calls it on several threads."""

    def __init__(self, name: str, shard: int) -> None:
        self._name, self._shard = name, shard
        self._changed = Condition()
        self._is_ready = self._is_stopping = False
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._error = ""
        self._process: subprocess.Popen[str] | None = None
        self._number = 0  # of the going back by which the process was started
        self._least = 0  # that a process may be started by
        self._status: int | None = None
        self._thread = Thread(target=self._keep, name="embstore-keep-server", daemon=True)
        self._thread.start()

    # Looking

    def state(self) -> dict[str, Any]:
        """Return whether the server is ready, its process id, and why it is not ready."""
        with self._changed:
            pid = self._process.pid if self._process is not None else None
            return {"ready": self._is_ready, "pid": pid, "error": self._error}

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Return the state once the server is ready, was refused, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._error, timeout_s)
        return self.state()

    def stop(self, timeout_s: float) -> int | None:
        """End the server by SIGTERM, and return its exit status; 0: everything is committed. None:
        none was running. It is not started again."""
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
        """End a server that was started before the cluster went back for the `number`th time;
        return when there is none any more."""
        with self._changed:
            self._least = max(self._least, number)
            if self._process is not None and self._number < number:
                self._process.kill()
            self._changed.wait_for(lambda: self._process is None or self._number >= number)

    # The server, on a thread of its own: the system ends a child with the thread that began it.

    def _keep(self) -> None:
        pause_s = _PAUSE_FIRST_S
        while not self._is_stopping:
            try:
                was_ready = self._serve(self._plan())
            except Exception as exc:  # shown by `state`, and tried again
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
        """Run the server to its end; return whether it was ready."""
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
        """Take the server's log to its end, into the actor's; return whether it was ready."""
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

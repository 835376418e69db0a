"""Servers and trainers as processes to be killed, forked from one that has everything loaded.

What is imported here is loaded once, by the process that forks (`tests.faults.forks`); neither gRPC
nor numba has a thread before something is opened.
"""

import os
import signal
import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from embstore.engine.engine import Engine
from embstore.storage.files import Files
from embstore_client.connecting import connect
from embstore_server.host import app
from embstore_server.setup.settings import Settings
from tests.faults.forks import Child, Forks
from tests.service.faults.ledger import gradients
from tests.service.faults.served import PATIENCE_S


def free_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def serve(reports: Connection, path: str, address: str, options: dict[str, Any]) -> None:
    """Serve a store; report the command number that it was opened at. `dies_at` among the options
    is a named point of its files at which it ends as by a crash."""
    dies_at = options.pop("dies_at", "")

    def reached(files: Files, point: str) -> None:
        if point == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    Files.reached = reached  # type: ignore[method-assign]
    opening = app._open

    def reporting(settings: Settings) -> Engine:
        engine = opening(settings)
        reports.send(engine.tables.frame.command_number)
        return engine

    app._open = reporting
    fixed = {"admin": "off", "log_level": "error", "cache_bytes": 1 << 22, "threads": 1}
    settings = Settings(data=Path(path), listen=address, **(fixed | options))
    os._exit(app.serve(settings))


def train(reports: Connection, address: str, first: int) -> None:
    """Send updates from number `first` on, and report each with its command number."""
    with connect(address, timeout_s=PATIENCE_S) as store:
        for n in range(first, first + 1000):
            reports.send((n, store.update(gradients(n)).command))


class ForkedServer:
    """A server that can be started again and again at one address."""

    def __init__(self, forks: Forks, path: Path, **options: Any) -> None:
        self._forks, self.path = forks, path
        self._options = {"durability": "checkpoint"} | options
        self.address = f"127.0.0.1:{free_port()}"
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._child is not None
        return self._child.pid

    def changed(self, **options: Any) -> "ForkedServer":
        """Return a server of the same directory, at another address and with other options."""
        return ForkedServer(self._forks, self.path, **(self._options | options))

    def await_death(self) -> None:
        """Wait until it has died where it was to."""
        assert self._child is not None
        assert self._child.wait() == -signal.SIGKILL
        del self._options["dies_at"]

    def start(self) -> int:
        """Start it; return the command number of the store that it found."""
        self._child = self._forks.start(serve, str(self.path), self.address, self._options)
        assert self._child.reports.poll(PATIENCE_S)
        command: Any = self._child.reports.recv()
        return int(command)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._child is not None
        assert self._child.kill() == -signal.SIGKILL

    def pause(self, seconds: float) -> None:
        """Let it not run for so long."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGSTOP)
        threading.Event().wait(seconds)
        os.kill(self._child.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end; everything is committed then."""
        assert self._child is not None
        child, self._child = self._child, None
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == 0

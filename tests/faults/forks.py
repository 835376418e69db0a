"""Processes to be killed, forked from one that has loaded embstore and warmed it up.

A fresh interpreter takes a second until its kernels are loaded; a fork of one that has them takes a
millisecond. The test process has threads (xdist, merges) and must not fork itself, so a **server**
with a single thread does it: `python -m tests.faults.forks FD`.

The server keeps each child until the test asks for its end, so a process id is never one of a
stranger; it kills by id, and only its own children.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from embstore_server.path.memory_trim import share_freed_memory

ROOT = Path(__file__).resolve().parents[2]
_MESSAGE_BYTES = 1 << 16


class Child:
    """One forked process that runs `function(reports, *args)`."""

    def __init__(self, control: socket.socket, pid: int, reports: Connection) -> None:
        self.reports = reports
        self._control = control
        self.pid = pid

    def kill(self) -> int:
        """Send SIGKILL, wait for the end, and return the exit code (-9 if it was alive)."""
        return self._end("kill")

    def wait(self) -> int:
        """Wait for the end and return the exit code: -9 if SIGKILL ended it."""
        return self._end("wait")

    def remaining(self) -> list[Any]:
        """Return what the child has reported and nobody has received; call it after the end."""
        received = []
        try:
            while self.reports.poll():
                received.append(self.reports.recv())
        except EOFError:
            self.reports.close()
        return received

    def _end(self, how: str) -> int:
        self._control.send(pickle.dumps((how, self.pid)))
        return int(pickle.loads(self._control.recv(_MESSAGE_BYTES)))


class Forks:
    """The server, as the test process sees it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.faults.forks", str(theirs.fileno())]
        environment = {**os.environ, "GRPC_VERBOSITY": "NONE"}  # as of a server that serves
        with theirs:
            self._server = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()]
            )

    def start(self, function: Callable[..., None], *args: Any) -> Child:
        """Fork a process that runs `function(reports, *args)`; what it sends comes to the test."""
        ours, theirs = Pipe(duplex=False)
        request = pickle.dumps(("start", function, args))
        socket.send_fds(self._control, [request], [theirs.fileno()])
        theirs.close()
        pid = pickle.loads(self._control.recv(_MESSAGE_BYTES))
        return Child(self._control, pid, ours)

    def close(self) -> None:
        """End the server."""
        self._control.close()
        self._server.wait()


def _serve(control: socket.socket) -> None:
    share_freed_memory()  # as `embstore serve` does before it has threads
    _warm_up()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
        if not request:
            return
        match pickle.loads(request):
            case "start", function, args:
                answer = _fork(control, descriptors[0], function, args)
            case "kill", pid:
                os.kill(pid, signal.SIGKILL)
                answer = _ended(pid)
            case "wait", pid:
                answer = _ended(pid)
        control.send(pickle.dumps(answer))


def _fork(control: socket.socket, descriptor: int, function: Any, args: Any) -> int:
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        control.close()
        function(Connection(descriptor, readable=False), *args)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _warm_up() -> None:
    """Run everything once, merges too, so that a child loads and compiles nothing."""
    from tests.faults.training import open_store, train

    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):
            with open_store(directory) as store:
                train(store, 1, 40)
                store.executor.storage.merges.finish()
                for name in store.tables():
                    store.table(name).digest()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

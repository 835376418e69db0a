"""A server of one's own, as a child process: for the demo, for tests, for benchmarks.

It is the real thing: `python -m embstore_server serve` on free ports of loopback, found by the
"ready" line of its log. It ends with its parent's block, by SIGTERM, or by `kill`.
"""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO

from embstore.errors import StoreClosedError

_STOP_TIMEOUT_S = 60.0
_LINES_KEPT = 200


class ServerProcess:
    """`embstore serve` as a child process; a context manager that starts and stops it.

    `address` is where gRPC listens, `admin` where REST does, once it is ready. `options` are more
    of the command line. Not thread-safe.
    """

    def __init__(self, data: Path | str, *options: str) -> None:
        self._command = [
            *(sys.executable, "-m", "embstore_server", "serve", "--data", str(data)),
            *("--log-format", "json", *options),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self.address = ""
        self.admin = ""
        for option in ("--listen", "--admin"):
            if option not in options:
                self._command += [option, "127.0.0.1:0"]

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> list[str]:
        """The last lines of its log."""
        return list(self._lines)

    def start(self) -> None:
        """Start, and wait until it serves.

        Raises
        ------
        StoreClosedError : it ended before it was ready; the message has its log.
        """
        process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        self._process = process
        try:
            self._wait_until_ready(process)
        except BaseException:
            process.kill()
            process.wait()
            raise

    def _wait_until_ready(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._lines.append(line.rstrip())
            if self._is_ready(line):
                break
        else:
            process.stderr.close()
            status = process.wait()
            raise StoreClosedError(
                f"the server ended with status {status} before it was ready:\n"
                + "\n".join(self._lines)
            )
        self._reader = Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._reader.start()

    def _is_ready(self, line: str) -> bool:
        try:
            entry = json.loads(line)
        except ValueError:
            return False
        if not isinstance(entry, dict) or entry.get("event") != "ready":
            return False
        self.address, self.admin = entry["listen"], entry["admin"]
        return True

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.rstrip())

    def stop(self) -> int:
        """Ask it to end (SIGTERM), wait, and return its exit status; 0: all is committed."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it at once (SIGKILL), as a crash does."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.send_signal(number)
        try:
            status = process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            if self._reader is not None:
                self._reader.join(_STOP_TIMEOUT_S)
        return status


def _environment() -> dict[str, str]:
    """Return this process's environment without settings: a server of one's own has its options."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMBSTORE_")}
    return kept | {"PYTHONUNBUFFERED": "1"}

"""A server as a child process, for the demo, for tests, and for benchmarks.

The process runs `python -m embstore_server serve` on free ports of loopback; the "ready" line of
its log contains the ports. The end of the block ends the process by SIGTERM; an exception in the
block, or `kill`, ends it by SIGKILL.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any

from embstore.errors import StoreClosedError

_STOP_TIMEOUT_S = 60.0
_LINES_KEPT = 200


class ServerProcess:
    """`embstore serve` as a child process; a context manager that starts and stops it.

    Once the server is ready, `address` is the address of its gRPC port, and `admin` that of its
    REST port. `options` are further flags. Not thread-safe.
    """

    def __init__(self, data: Path | str, *options: str) -> None:
        self._command = [
            *(sys.executable, "-m", "embstore_server", "serve", "--data", str(data)),
            *("--log-format", "json", *options),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._events: Counter[str] = Counter()
        self._logged = Condition()
        self.address = ""
        self.admin = ""
        for option in ("--listen", "--admin"):
            if option not in options:
                self._command += [option, "127.0.0.1:0"]

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        """The last lines of the server's log."""
        return list(self._lines)

    def start(self) -> None:
        """Start the process, and wait until it serves.

        Raises StoreClosedError if the process ended before it was ready; the message contains its
        log.
        """
        kept = {name: v for name, v in os.environ.items() if not name.startswith("EMBSTORE_")}
        process = self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | {"PYTHONUNBUFFERED": "1"},  # settings come only from the flags
        )
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
            ready = _entry(line)
            if ready.get("event") == "ready":
                self.address, self.admin = ready["listen"], ready["admin"]
                self._reader = Thread(target=self._read, args=(process.stderr,), daemon=True)
                self._reader.start()
                return
        process.stderr.close()
        status, log = process.wait(), "\n".join(self._lines)
        raise StoreClosedError(f"the server ended with status {status} before it was ready:\n{log}")

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._logged:
                    self._lines.append(line.rstrip())
                    self._events[_entry(line).get("event", "")] += 1
                    self._logged.notify_all()

    def reload(self, event: str) -> None:
        """Make the server read tokens and certificates again (SIGHUP); return when its log contains
        `event`."""
        with self._logged:
            before = self._events[event]
            os.kill(self.pid, signal.SIGHUP)
            if not self._logged.wait_for(lambda: self._events[event] > before, _STOP_TIMEOUT_S):
                raise StoreClosedError(f"no {event!r} in the log:\n" + "\n".join(self._lines))

    def stop(self) -> int:
        """Stop the server by SIGTERM, and return its exit status; 0: everything is committed."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the server (SIGKILL), as in a crash."""
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


def _entry(line: str) -> dict[str, Any]:
    """Return the event in a line of the log; empty if the line contains no event."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}

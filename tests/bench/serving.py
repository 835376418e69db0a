"""Servers that the benchmarks start, each a real process, and the counts that these servers keep of
their own calls.

The packages of the extra `server` are looked for first. If a package is missing, a part that needs
a server is skipped, with the names of the packages to install, and no process is started that could
only fail.
"""

import json
import pathlib
import urllib.request
from typing import Any

from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from tests import installed
from tests.bench.worker import SkippedError

FIGURES_TIMEOUT_S = 30.0

Verbs = dict[str, dict[str, int]]
"""By verb: calls, bytes to the server, bytes from it, since it began."""


def verbs_of(admin: str) -> Verbs:
    """Return what a server has counted of its calls."""
    url = f"http://{admin}/api/v1/stats"
    with urllib.request.urlopen(url, timeout=FIGURES_TIMEOUT_S) as reply:
        verbs: dict[str, Any] = json.load(reply)["verbs"]
    return {
        verb: {
            "calls": sum(told["codes"].values()),
            "up_bytes": int(told["received_bytes"]),
            "down_bytes": int(told["sent_bytes"]),
        }
        for verb, told in verbs.items()
    }


def grown(before: Verbs, after: Verbs) -> Verbs:
    """Return what was counted between two readings."""
    return {
        verb: {name: total - before.get(verb, {}).get(name, 0) for name, total in totals.items()}
        for verb, totals in after.items()
    }


class Server:
    """A server with an empty store, and one connection to it, by gRPC unless another transport is
    named. Not thread-safe.

    It logs no commands, as its peers log none; what that costs is measured by itself. `store` is
    the client's. Raises SkippedError where the extra `server` is not installed.
    """

    def __init__(
        self, folder: pathlib.Path, cache_bytes: int, *options: str, transport: str = "grpc"
    ) -> None:
        absent = installed.lacking(installed.SERVER)
        if absent is not None:
            raise SkippedError(f"{absent} (the extra `server`)")
        usual = ("--device", "cpu", "--policy", "lru", "--cache-bytes", str(cache_bytes))
        usual += () if "--durability" in options else ("--durability", "checkpoint")
        self._process = ServerProcess(folder, *usual, *options)
        self._process.start()
        try:
            self.store = connect(self.address, transport=transport)
        except BaseException:
            self._process.kill()
            raise

    @property
    def address(self) -> str:
        return self._process.address

    def verbs(self) -> Verbs:
        return verbs_of(self._process.admin)

    def stop(self) -> None:
        """Have it commit and end, as SIGTERM does."""
        self._process.stop()

    def close(self) -> None:
        """End it at once: nothing is kept of it, and a commit would write every row to disk."""
        self.store.close()
        self._process.kill()

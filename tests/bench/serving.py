"""Servers of the benchmark's own, each a real process, and what they count of themselves.

What the extra `server` brings is looked for first: where it is missing, who asks for a server is
skipped with the names of what to install, and no process is started that could only end.
"""

import json
import pathlib
import urllib.request
from typing import Any

from embstore_client import connect
from embstore_server.launch import ServerProcess
from tests import installed
from tests.bench.worker import SkippedError

FIGURES_TIMEOUT_S = 30.0

Verbs = dict[str, dict[str, float]]
"""Totals by verb since the server began: calls, bytes, seconds."""


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
        """Where it serves gRPC."""
        return self._process.address

    def verbs(self) -> Verbs:
        """Return what calls cost so far: "calls", "received_bytes", "sent_bytes", and "call_s",
        "wait_s" (in the queue) and "engine_s" (on the engine thread) as the server saw them.
        """
        url = f"http://{self._process.admin}/api/v1/stats"
        with urllib.request.urlopen(url, timeout=FIGURES_TIMEOUT_S) as reply:
            verbs = json.load(reply)["verbs"]
        return {verb: _totals(figures) for verb, figures in verbs.items()}

    def stop(self) -> None:
        """Have it commit and end, as SIGTERM does."""
        self._process.stop()

    def close(self) -> None:
        """End it at once: nothing is kept of it, and a commit would write every row to disk."""
        self.store.close()
        self._process.kill()


def _totals(figures: dict[str, Any]) -> dict[str, float]:
    totals = {name: figures[name] for name in ("received_bytes", "sent_bytes")}
    totals["calls"] = sum(figures["codes"].values())
    for part in ("call", "wait", "engine"):
        totals[f"{part}_s"] = figures[part]["count"] * figures[part]["mean"]
    return totals


def per_call(before: Verbs, after: Verbs) -> Verbs:
    """Return the mean of each figure over the calls between two readings, and their number."""
    means: Verbs = {}
    for verb, totals in after.items():
        spent = {name: value - before.get(verb, {}).get(name, 0) for name, value in totals.items()}
        calls = spent.pop("calls")
        if calls:
            means[verb] = {"calls": calls} | {name: value / calls for name, value in spent.items()}
    return means

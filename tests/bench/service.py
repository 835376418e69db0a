"""The same training as ``embstore-100``, through the service: client and server, two processes.

The worker is the trainer: it holds the client and does the client's share of the work (keys made
unique, gradients summed, rows spread). The server is its child, with every row in its cache. The
trace, the lanes and the way they are timed are those of ``engine.py``: only the store is another.
Beside the stages of the engine it notes what the server saw of a call: bytes both ways, and
milliseconds from the first byte to the answer, in the queue and on the engine thread.
"""

import pathlib
from typing import Any

from tests.bench.engine import EngineContender
from tests.bench.rounds import Lane
from tests.bench.scale import Scale
from tests.bench.serving import Server, per_call


class ServiceContender(EngineContender):
    """Owns a server for each lane."""

    def __init__(self, scale: Scale) -> None:
        self._servers: dict[str, Server] = {}
        try:
            super().__init__(scale)
            self._verbs_before = {name: server.verbs() for name, server in self._servers.items()}
        except BaseException:
            self._end_servers()
            raise

    def _open(self) -> dict[str, Lane]:
        return {
            "service": self._table_lane("service", 1.0),
            "service-26-tables": self._call_lane("service-26-tables"),
        }

    def _open_store(self, path: pathlib.Path, cache_bytes: int) -> Any:
        server = self._servers[path.name] = Server(path, cache_bytes)
        return server.store

    def notes(self) -> dict[str, Any]:
        """Return the engine's notes, and by verb what a call cost as the server saw it."""
        notes = super().notes()
        for name, server in self._servers.items():
            notes[name]["calls"] = per_call(self._verbs_before[name], server.verbs())
        return notes

    def close(self) -> None:
        """End the servers."""
        self._end_servers()

    def _end_servers(self) -> None:
        for server in self._servers.values():
            server.close()


start = ServiceContender
"""Servers up, tables written, kernels compiled on both sides."""

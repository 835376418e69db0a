"""The same training as ``service``, through memory that client and server share.

Only the transport is another, and that the rows of a lookup are used where they are: an array of
shared memory, which is given back when the next batch's rows have come.
"""

import pathlib
from typing import Any

from tests.bench.engine import TableLane
from tests.bench.rounds import Lane
from tests.bench.service import ServiceContender
from tests.bench.serving import Server


class ViewLane(TableLane):
    """Looks rows up without an array of its own for them."""

    def lookup(self, prepared: Any) -> Any:
        """Return the rows where they are."""
        return self._table.lookup(prepared[0])


class SharedContender(ServiceContender):
    """Owns the server."""

    def _open(self) -> dict[str, Lane]:
        return {"shared-memory": self._table_lane("shared-memory", 1.0)}

    def _lane(self, table: Any) -> TableLane:
        return ViewLane(table, self._scale)

    def _open_store(self, path: pathlib.Path, cache_bytes: int) -> Any:
        server = Server(path, cache_bytes, transport="shared_memory")
        self._servers[path.name] = server
        return server.store


start = SharedContender
"""Server up, table written, kernels compiled on both sides."""

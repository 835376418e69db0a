"""Served backends: every store behind a server of its own, every verb over a wire.

The client is the real one, the wire is gRPC on loopback, or memory that is shared, and the server
is all of it but its process (`tests.serving`); it shares this process, so that a case can settle
merges, copy the files as a kill leaves them, and set limits. What the process itself does is
therefore not offered.

`close` of such a store stops its server, as SIGTERM does, and then the connection: what a case
means by closing is that everything is committed and the directory is free.

Messages of a test are small, and would all travel as unary calls in one piece. So the sizes where
streams begin, and of a chunk, are made small as well: both kinds are met all the time, and arrays
are cut wherever it may be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from embstore.engine.engine import Engine
from embstore.handles.store import Store
from tests.conformance.backends import Embedded, finish_merges
from tests.serving import Server, patient

_UNARY_BYTES, _CHUNK_BYTES = 8 << 10, 16381
_INLINE_BYTES = 256


@contextmanager
def small_pieces() -> Iterator[None]:
    """Have messages of more than some KiB travel as streams of odd chunks."""
    with (
        patch("embstore_client.grpc_wire.UNARY_BYTES", _UNARY_BYTES),
        patch("embstore_proto.frame.CHUNK_BYTES", _CHUNK_BYTES),
        patch("embstore_client.shared_memory.INLINE_BYTES", _INLINE_BYTES),
        patch("embstore_server.transports.shared_memory.connection.INLINE_BYTES", _INLINE_BYTES),
    ):
        yield


class ServedStore(Store):
    """A client's store that is alone with its server, and ends it when it is closed."""

    def __init__(self, server: Server, address: str) -> None:
        super().__init__(patient(address).executor)
        self.server = server

    def close(self) -> None:
        try:
            self.server.stop()  # first, so that calls that run are answered
        finally:
            super().close()


class Served(Embedded):
    """Stores served by this process, each in a directory below `root`."""

    offers = Embedded.offers - {"process"}
    is_remote = True
    durability = "commands"

    def _open(self, path: Path, options: dict[str, Any]) -> Any:
        told = {name: options[name] for name in ("policy", "read_only") if name in options}
        opening = super()._open
        server = Server(lambda: opening(path, options), path, **told, **self._socket(path))
        return ServedStore(server, self._address(server))

    def _socket(self, path: Path) -> dict[str, str]:
        return {"socket": "off"}

    def _address(self, server: Server) -> str:
        return server.address

    def engine(self, store: Any) -> Engine:
        return store.server.store.executor

    def settle(self, store: Any) -> None:
        store.server.on_engine(lambda served: finish_merges(served.executor))


class Shared(Served):
    """The same, over shared memory."""

    durability = "interval"

    def _socket(self, path: Path) -> dict[str, str]:
        return {"socket": f"{path}-{len(self._opened)}.socket"}  # readers are several

    def _address(self, server: Server) -> str:
        return f"unix:{server.socket}"

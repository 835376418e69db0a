"""The connections of the REST port: no more than there may be, and none that asks for nothing.

A connection holds a descriptor. Uvicorn ends one that has been answered and sends nothing more; it
waits for ever for the first request, and for the rest of a request that was begun.
"""

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol(connections_max: int, handshake_timeout_s: float) -> Any:
    """Return what Uvicorn is to make for each connection."""
    return partial(
        _Connection, connections_max=connections_max, handshake_timeout_s=handshake_timeout_s
    )


class _Connection(H11Protocol):
    """A connection that has so much time for the head of a request."""

    def __init__(
        self, *args: Any, connections_max: int, handshake_timeout_s: float, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._connections_max = connections_max
        self._handshake_timeout_s = handshake_timeout_s
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._connections_max:
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        """Let the time run while no request is there, or only a part of its head."""
        is_asked = self.cycle is not None and not self.cycle.response_complete
        if is_asked or self.timeout_keep_alive_task is not None:
            self._stop_watching()
        elif self._end is None:
            self._end = self.loop.call_later(self._handshake_timeout_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

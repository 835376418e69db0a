"""The shared-memory connections that no call uses. Those with a device segment are kept apart.

Requesting and opening a device segment takes longer than a call, and longer than a new connection.
So a call with arrays in the GPU's memory takes a connection that has such a segment, and other
calls never take it. Otherwise a loop would have to open a segment whenever the thread that reads
its batches has taken the loop's connection.

All methods can run in any thread at any moment, also when the garbage collector deletes an array.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from embstore_client.device_segment import DeviceSide

_MOST = 8


class _HasDevice(Protocol):
    device: DeviceSide


C = TypeVar("C", bound=_HasDevice)


class FreeConnections(Generic[C]):
    """Free connections; the most recently used connection is taken first."""

    def __init__(self) -> None:
        self._plain: deque[C] = deque()
        self._with_segment: deque[C] = deque()

    def add(self, connection: C) -> bool:
        """Keep a connection, and return True; return False if enough are kept already."""
        if len(self._plain) + len(self._with_segment) >= _MOST:
            return False
        has_segment = connection.device.segment is not None
        (self._with_segment if has_segment else self._plain).append(connection)
        return True

    def take(self, *, on_device: bool = False) -> C | None:
        """Return a free connection, or None if no connection is free. A call without arrays in a
        GPU's memory gets a connection without a device segment; a call with such arrays can get any
        connection, if possible one with a segment."""
        for free in (self._with_segment, self._plain) if on_device else (self._plain,):
            try:
                return free.pop()
            except IndexError:
                continue
        return None

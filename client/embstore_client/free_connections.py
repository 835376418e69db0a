"""The connections of shared memory that no call uses, those with a segment of a GPU apart.

To ask for a segment, and to open it, takes longer than a call, or a new connection. So a call with
arrays in the GPU's memory takes a connection that has one, and other calls leave those alone: else
a loop would have to make one whenever the thread that reads its batches has taken the loop's.

Any thread, at any moment: also where an array is dropped by the garbage collection.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from embstore_client.device_segment import DeviceSide

_MOST = 8


class _HasDevice(Protocol):
    device: DeviceSide


C = TypeVar("C", bound=_HasDevice)


class FreeConnections(Generic[C]):
    """Connections that are free; the one that was used last comes first."""

    def __init__(self) -> None:
        self._plain: deque[C] = deque()
        self._with_segment: deque[C] = deque()

    def add(self, connection: C) -> bool:
        """Keep a connection; False: there are enough."""
        if len(self._plain) + len(self._with_segment) >= _MOST:
            return False
        has_segment = connection.device.segment is not None
        (self._with_segment if has_segment else self._plain).append(connection)
        return True

    def take(self, *, on_device: bool = False) -> C | None:
        """Return one for a call without arrays in a GPU's memory; or for one with some, then of any
        kind. None: there is none."""
        for free in (self._with_segment, self._plain) if on_device else (self._plain,):
            try:
                return free.pop()
            except IndexError:
                continue
        return None

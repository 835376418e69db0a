"""What travels between trainers and the server of this process, by the socket of shared memory."""

import threading
from collections import Counter
from typing import Any

import pytest

from embstore_client import shared_memory


class Travelled:
    """Frames that clients have sent, and bytes that they have sent and received, by thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._frames: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        connection: Any = shared_memory._Connection
        send, some = connection.send, connection._some

        def counting_send(own: Any, pieces: Any, deadline: float) -> None:
            self._frames[threading.get_ident()] += 1
            self._bytes[threading.get_ident()] += sum(map(len, pieces))
            send(own, pieces, deadline)

        def counting_some(own: Any, deadline: float) -> bytes:
            data: bytes = some(own, deadline)
            self._bytes[threading.get_ident()] += len(data)
            return data

        patch.setattr(connection, "send", counting_send)
        patch.setattr(connection, "_some", counting_some)

    @property
    def of_this_thread(self) -> tuple[int, int]:
        """Frames that were sent, and bytes both ways."""
        own = threading.get_ident()
        return self._frames[own], self._bytes[own]

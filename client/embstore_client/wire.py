"""The wires that carry a client's calls, and the error for a call that was not answered.

A wire sends one attempt of one call. It knows verbs and messages, and nothing of tables, origins
and further attempts (`transport`). `grpc_wire` is one over the network, `shared_memory` one to a
server of the same host, and `nearest_wire` chooses between them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from grpc import StatusCode

from embstore.errors import EmbstoreError
from embstore.results import ServerInfo
from embstore_proto.frame import Message
from embstore_proto.received import Received
from embstore_proto.verbs import Verb


class WireError(Exception):
    """An attempt without an answer: how it ended, and the error that the server named, if any."""

    def __init__(
        self,
        code: StatusCode,
        text: str,
        error: EmbstoreError | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        super().__init__(text)
        self.code, self.text, self.error = code, text, error
        self.is_final = is_final
        """No further attempt can succeed."""


class Wire(Protocol):
    """A connection to a server. Any thread."""

    @property
    def shares_memory(self) -> bool:
        """Arrays travel without a copy, so that it does not pay to make keys unique before."""

    def send(
        self,
        verb: Verb,
        header: bytes,
        message: Message | None,
        reply_bytes: int,
        deadline: float,
        map_version: int = 0,
    ) -> bytes | Received:
        """Send a call with one answer, and return that; `reply_bytes` is about its size, where it
        may be large. `map_version` is the version of the cluster's map by which the call was split:
        it travels outside the message, as a trace does; 0: there is none. Raises WireError."""

    def receive(
        self, verb: Verb, header: bytes, deadline: float, map_version: int = 0
    ) -> AbstractContextManager[Iterator[bytes | Received]]:
        """Send a call, and yield the messages of its answer; leaving the block ends it. Raises
        WireError, also while the messages are taken."""

    def share_device(self, deadline: float, name: str | None) -> None:
        """Share the memory of the server's GPU. Raises WireError; InvalidArgumentError: it cannot
        be shared, or this process names the GPU differently from `name`."""

    def connected(self, info: ServerInfo) -> None:
        """Take note of the server's facts."""

    def close(self) -> None:
        """End the connection; calls that run are cut off."""

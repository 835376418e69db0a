"""Connections that carry a client's calls (`Wire`), and the error for a call without an answer.

A wire sends one attempt of one call. It depends on verbs and messages, but not on tables. Origins
and further attempts are handled in `transport`. The wire in `grpc_wire` is for networks, the wire
in `shared_memory` for a server on the same host, and `nearest_wire` chooses between them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from grpc import StatusCode

from embstore.commands import PartOf
from embstore.errors import EmbstoreError
from embstore.results import ServerInfo
from embstore_proto.frame import Message
from embstore_proto.received import Received
from embstore_proto.verbs import Verb


class WireError(Exception):
    """An attempt without an answer: its status code, and the server's error, if there is one."""

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
        """Whether no further attempt can succeed."""


class Wire(Protocol):
    """A connection to a server. Any thread may use it."""

    @property
    def shares_memory(self) -> bool:
        """Whether memory is shared with the server. If it is, making keys unique would not save
        time."""

    def send(
        self,
        verb: Verb,
        header: bytes,
        message: Message | None,
        reply_bytes: int,
        deadline: float,
        part_of: PartOf | None = None,
    ) -> bytes | Received:
        """Send a call with one answer, and return the answer. Raises WireError.

        `reply_bytes` is the approximate size of the answer, if it can be large. `part_of` is the
        command of a cluster of which the call's command is a part; it is sent outside the message,
        like a trace id. None: the command was not split.
        """

    def receive(
        self, verb: Verb, header: bytes, deadline: float, part_of: PartOf | None = None
    ) -> AbstractContextManager[Iterator[bytes | Received]]:
        """Send a call, and yield the messages of its answer; leaving the block ends the call.
        Raises WireError, also while the messages are received."""

    def share_device(self, deadline: float, name: str | None) -> None:
        """Share the memory of the server's GPU. Raises WireError; InvalidArgumentError if the
        memory cannot be shared, or if this process has another name than `name` for the GPU."""

    def connected(self, info: ServerInfo) -> None:
        """Take over the facts that the server returned (its limits, process and socket)."""

    def close(self) -> None:
        """Close the connection and interrupt running calls."""

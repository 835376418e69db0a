"""The nearest transport to a server: shared memory if the server is on this host, else gRPC.

A server returns the path of its socket in its GetServerInfo. Shared memory is used if the process
that answers at that path is the server that returned the path, and accepts this caller. A socket at
the same path on another host, or of another server, is thereby excluded. A call is sent by gRPC if
it does not fit into shared memory, because its header has some hundred KiB or because the server
has no memory for the call's segment.

When the shared-memory connection is lost, for example because the server restarts, calls are sent
by gRPC, which waits until the server is back. Then the client looks for the socket once more.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from grpc import StatusCode

from embstore.commands import GetServerInfo, PartOf
from embstore.errors import EmbstoreError, StoreClosedError
from embstore.results import ServerInfo
from embstore_client.device_message import DeviceMessage
from embstore_client.grpc_wire import GrpcWire
from embstore_client.shared_memory import NoSharedMemoryError, SharedMemoryWire
from embstore_client.wire import Wire, WireError
from embstore_proto.frame import Message
from embstore_proto.received import Received
from embstore_proto.verbs import VERBS, Verb

_APART_S = 1.0
"""Minimum seconds between two attempts to find the socket."""
_LOOK_S = 5.0
_HEADER_BYTES_MAX = 512 << 10


class NearestWire:
    """Shared memory and gRPC, the two transports to one server."""

    def __init__(self, grpc: GrpcWire, *, must_share: bool, **options: Any) -> None:
        """If `must_share`, the caller has asked for shared memory, and gets an error if memory
        cannot be shared. `options` are the arguments of SharedMemoryWire."""
        self._grpc = grpc
        self._options = options
        self._must_share = must_share
        self._shared: SharedMemoryWire | None = None
        self._looked = float("-inf")
        self._looking = threading.Lock()
        self._is_lost = False

    @property
    def shares_memory(self) -> bool:
        """Whether calls use shared memory now."""
        return self._shared is not None

    def connected(self, info: ServerInfo) -> None:
        """Look for the server's socket, if the server is on this host."""
        self._grpc.connected(info)
        with self._looking:
            if self._shared is None or self._shared.process != info.process:
                self._share(info)

    def _share(self, info: ServerInfo) -> None:
        self._looked, before = monotonic(), self._shared
        self._shared, why = None, "the server has no socket"
        if before is not None:
            before.close()
        if info.socket:
            wire = SharedMemoryWire(info.socket, **self._options)
            try:
                deadline = monotonic() + _LOOK_S
                wire.release(wire.connect(deadline), is_whole=True)
                if wire.process == info.process:
                    verb = VERBS["GetServerInfo"]
                    request = verb.outgoing(GetServerInfo()).serialised(None)
                    wire.send(verb, request, None, 0, deadline)
                    self._shared, self._is_lost = wire, False
                    return
                why = f"another server is at {info.socket} here"
            except (WireError, EmbstoreError) as exc:
                why = str(exc)
            wire.close()
        if self._must_share and not self._is_lost:
            raise StoreClosedError(
                f'no shared memory with the server: {why}; transport="auto" or "grpc" works '
                "without it"
            )

    def _look_again(self, deadline: float) -> None:
        """Look for the socket of a server that was restarted, at most until the call's deadline."""
        if not self._is_lost or monotonic() - self._looked < _APART_S:
            return
        self._looked = monotonic()
        verb = VERBS["GetServerInfo"]
        request = verb.outgoing(GetServerInfo()).serialised(None)
        with suppress(WireError, EmbstoreError):
            deadline = min(deadline, monotonic() + _LOOK_S)
            reply = self._grpc.send(verb, request, None, 0, deadline)
            self.connected(verb.answer(reply).value)

    def _wire(self, header: bytes, deadline: float) -> Wire:
        if self._shared is None:
            self._look_again(deadline)
        shared = self._shared
        return self._grpc if shared is None or len(header) > _HEADER_BYTES_MAX else shared

    def _note(self, wire: Wire, exc: WireError) -> None:
        """If the error shows that shared memory was lost, use gRPC from now on."""
        if isinstance(wire, SharedMemoryWire) and exc.error is None:
            if exc.code is StatusCode.UNAVAILABLE and self._shared is wire:
                self._shared, self._is_lost = None, True
                wire.retire()

    def send(
        self,
        verb: Verb,
        header: bytes,
        message: Message | None,
        reply_bytes: int,
        deadline: float,
        part_of: PartOf | None = None,
    ) -> bytes | Received:
        """Send a call with one answer; see `Wire.send`."""
        on_device = isinstance(message, DeviceMessage)
        wire = self._sharing(header, deadline) if on_device else self._wire(header, deadline)
        try:
            return wire.send(verb, header, message, reply_bytes, deadline, part_of)
        except NoSharedMemoryError:
            if on_device:
                raise
            return self._grpc.send(verb, header, message, reply_bytes, deadline, part_of)
        except WireError as exc:
            self._note(wire, exc)
            raise

    def _sharing(self, header: bytes, deadline: float) -> Wire:
        """Return the connection for a call that needs shared memory. If shared memory was lost, and
        may still be re-established, raise WireError."""
        wire = self._wire(header, deadline)
        if wire is self._grpc and self._is_lost:
            lost = "the shared-memory connection to the server was lost; reconnecting"
            raise WireError(StatusCode.UNAVAILABLE, lost, StoreClosedError(lost))
        return wire

    def share_device(self, deadline: float, name: str | None) -> None:
        """Have the server share its GPU's memory; see `Wire.share_device`."""
        wire = self._sharing(b"", deadline)
        try:
            wire.share_device(deadline, name)
        except WireError as exc:
            self._note(wire, exc)
            raise

    @contextmanager
    def receive(
        self, verb: Verb, header: bytes, deadline: float, part_of: PartOf | None = None
    ) -> Iterator[Iterator[bytes | Received]]:
        """Send a call, and yield the messages of its answer; see `Wire.receive`."""
        wire = self._wire(header, deadline)
        try:
            with wire.receive(verb, header, deadline, part_of) as messages:
                yield messages
        except WireError as exc:
            self._note(wire, exc)
            raise

    def close(self) -> None:
        """Close both transports."""
        if self._shared is not None:
            self._shared.close()
        self._grpc.close()

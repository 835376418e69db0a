"""Calls as bytes, so that a test can send what the client library never would."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
import numpy as np

from embstore_proto import frame
from embstore_proto.received import Assembly, split
from embstore_proto.status import ERROR_METADATA
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.served import PATIENCE_S

SERVICE = "/embstore.v1.Embstore/"


class Refusal(NamedTuple):
    """How a call was refused."""

    code: str
    error: str  # the class of embstore.errors; empty: gRPC's own
    text: str
    trailing: Mapping[str, Any]


class Wire:
    """A connection that sends and returns bytes. A context manager that closes it."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._methods: dict[tuple[str, Any], Any] = {}

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _method(self, name: str, make: Any) -> Any:
        if (name, make) not in self._methods:
            self._methods[name, make] = make(SERVICE + name)
        return self._methods[name, make]

    def unary(self, name: str, message: bytes, timeout: float | None = PATIENCE_S) -> bytes:
        """Do a unary call."""
        return bytes(self._method(name, self._channel.unary_unary)(message, timeout=timeout))

    def begin(self, name: str, message: bytes, timeout: float | None = PATIENCE_S) -> Any:
        """Send a unary call and return its future."""
        return self._method(name, self._channel.unary_unary).future(message, timeout=timeout)

    def begin_stream(
        self, name: str, chunks: Iterable[bytes], timeout: float | None = PATIENCE_S
    ) -> Any:
        """Send a verb's stream and return the call, an iterator over the reply."""
        return self.begin_method(f"{name}Stream", chunks, timeout)

    def begin_method(
        self, method: str, chunks: Iterable[bytes], timeout: float | None = PATIENCE_S
    ) -> Any:
        """The same of a method by its own name."""
        return self._method(method, self._channel.stream_stream)(iter(chunks), timeout=timeout)

    def stream(
        self, name: str, chunks: Iterable[bytes], timeout: float | None = PATIENCE_S
    ) -> memoryview:
        """Do a streamed call and return its reply, joined."""
        assembly = Assembly(1 << 30)
        for chunk in self.begin_stream(name, chunks, timeout):
            assembly.add(chunk)
        return assembly.whole()


def refusal(call: Callable[[], Any]) -> Refusal:
    """Do a call that must be refused, and return how."""
    try:
        answer = call()
    except grpc.RpcError as exc:
        return refusal_of(exc)
    raise AssertionError(f"expected a refusal, found {answer!r}")


def refusal_of(status: Any) -> Refusal:
    """Return how a call ended."""
    trailing = dict(status.trailing_metadata() or ())
    return Refusal(
        status.code().name, trailing.get(ERROR_METADATA, ""), status.details() or "", trailing
    )


def update(
    gradients: Mapping[str, tuple[Any, Any]], origin: pb.Origin | None = None
) -> frame.Framed:
    """Return the message of an update."""
    message = frame.Message()
    header = pb.UpdateRequest.Header(origin=origin)
    for name, (keys, rows) in gradients.items():
        header.tables.add(
            table=name,
            keys=message.add(np.asarray(keys, np.int64)),
            gradients=message.add(np.asarray(rows, np.float32)),
        )
    return message.framed(header.SerializeToString())


def lookup(keys: Mapping[str, Any]) -> frame.Framed:
    """Return the message of a lookup."""
    message = frame.Message()
    header = pb.LookupRequest.Header()
    for name, some in keys.items():
        header.tables.add(table=name, keys=message.add(np.asarray(some, np.int64)))
    return message.framed(header.SerializeToString())


def pieces(message: frame.Framed, size: int) -> list[bytes]:
    """Return a message as serialised Chunks with `size` bytes each."""
    whole = message.joined()
    cut = [whole[at : at + size] for at in range(0, len(whole), size)]
    chunks = [pb.Chunk(piece=piece) for piece in cut]
    chunks[0].total_bytes = len(whole)
    return [chunk.SerializeToString() for chunk in chunks]


def acknowledged(reply: bytes | memoryview) -> pb.BulkAcknowledgedReply.Header:
    """Return the header of a writing call's reply."""
    return pb.BulkAcknowledgedReply.Header.FromString(split(reply).header)


class Sender:
    """A client's numbers: the origins of its calls."""

    def __init__(self, wire: Wire) -> None:
        info = pb.GetServerInfoReply.FromString(wire.unary("GetServerInfo", b""))
        self.client_id = uuid4().hex
        self.context = info.context
        self._last = 0

    def origin(self, **given: Any) -> pb.Origin:
        """Return the origin of the next call."""
        self._last += 1
        return pb.Origin(
            client_id=self.client_id,
            sequence=self._last,
            instance=self.context.instance,
            epoch=self.context.epoch,
            **given,
        )


def again(origin: pb.Origin, **given: Any) -> pb.Origin:
    """Return the origin of a further attempt."""
    further = pb.Origin()
    further.CopyFrom(origin)
    further.attempt += 1
    for name, value in given.items():
        setattr(further, name, value)
    return further

"""Frames on the Unix socket of the shared-memory transport.

A connection carries one call at a time. Headers are sent over the socket, and so are payloads of up
to INLINE_BYTES. Larger payloads are in a *segment*: memory that the server allocates, seals at its
size, and sends to the client as a descriptor. A segment contains only data. Offsets and sizes are
in frames on the socket, and each side reads every byte of a frame once.

    GREETING   server    protocol, the id of its process
    HELLO      client    authorization, label
    SEGMENT    client    requests a segment of this many bytes
    SEGMENT    server    the segment, with its descriptor; it replaces the previous segment
    CALL       client    verb, header, payload; the seconds that are left until the deadline
    RESULT     server    header, payload: the answer, or the last of several
    PART       server    header, payload: one of several answers, others follow
    ERROR      server    the error's class and text; the call has ended
    DEVICE_SEGMENT, ON_DEVICE    for arrays in a GPU's memory: see device_segment.py
    TRACE      client    the trace of the next CALL; not sent for most calls
    MAP        client    the version of the map by which the next CALL was split; for shards only

A frame names a payload in the segment by its offset and size. If a payload of the server is in a
new segment, the server sends the SEGMENT frame first. A client that no longer wants an answer
closes its connection. The memory of an answer is reused when the next CALL is sent, so a client
that keeps an answer's arrays sends the next call over another connection.

Integers are little-endian. `docs/formats.md` describes the bytes.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from embstore.commands import PartOf
from embstore.errors import InvalidArgumentError

PROTOCOL = b"embstore shared memory 1\n"

INLINE_BYTES = 16 << 10
"""Payloads up to this size are sent over the socket. The socket copies them twice, in a few
microseconds; a segment would have to be requested first."""

_HEAD = struct.Struct("<IBB")
HEAD_BYTES = _HEAD.size
_CALL = struct.Struct("<dIQQ")
_ANSWER = struct.Struct("<IQQ")
_SEGMENT = struct.Struct("<Q")
_MAP = struct.Struct("<QQ?")

_INLINE = (1 << 64) - 1
"""The offset that stands for no offset: the payload follows its header."""


class Kind(IntEnum):
    """The kind of a frame."""

    GREETING = 1
    HELLO = 2
    SEGMENT = 3
    CALL = 4
    RESULT = 5
    PART = 6
    ERROR = 7
    DEVICE_SEGMENT = 8
    ON_DEVICE = 9
    TRACE = 10
    MAP = 11


class Call(NamedTuple):
    """A request; its payload is `inline`, or in the segment."""

    verb: str
    seconds: float
    header: bytes
    inline: bytes
    offset: int | None
    size: int


class Answer(NamedTuple):
    """One message of an answer."""

    is_last: bool
    header: bytes
    inline: bytes
    offset: int | None
    size: int


class Refusal(NamedTuple):
    """The error that ends a call: its gRPC code, and its class ("" if it is no EmbstoreError)."""

    code: int
    name: str
    text: str
    is_final: bool
    """Whether sending the call again cannot succeed."""


def frame_of(kind: Kind, *parts: bytes, small: int = 0) -> bytes:
    """Return a frame of a kind; `small` is a number from 0 to 255 in the frame's head."""
    return b"".join((_HEAD.pack(sum(map(len, parts)), kind, small), *parts))


def head_of(data: bytes | bytearray) -> tuple[int, int, int]:
    """Return what a frame's head contains: the bytes of the body, the kind, and a small integer."""
    return _HEAD.unpack_from(data)


def greeting(process: str) -> bytes:
    """Return the first frame of a server."""
    return frame_of(Kind.GREETING, PROTOCOL, process.encode())


def process_of(body: bytes) -> str:
    """Return the id of the process that sent a greeting."""
    if not body.startswith(PROTOCOL):
        raise InvalidArgumentError(
            f"expected a server that says {PROTOCOL!r}, found {bytes(body[:40])!r}: client and "
            "server are of versions too far apart"
        )
    return body[len(PROTOCOL) :].decode(errors="replace")


def hello(authorization: str, label: str) -> bytes:
    """Return the first frame of a client."""
    return frame_of(Kind.HELLO, f"{authorization}\n{label}".encode())


def said(body: bytes) -> tuple[str, str]:
    """Return (authorization, label) from a client's first frame."""
    authorization, _, label = body.decode(errors="replace").partition("\n")
    return authorization, label


def segment(size: int) -> bytes:
    """Return a frame of kind SEGMENT: a client's request for a segment of `size` bytes, or the
    server's answer."""
    return frame_of(Kind.SEGMENT, _SEGMENT.pack(size))


def segment_of(body: bytes) -> int:
    """Return the size of the segment in a SEGMENT frame, in bytes."""
    check(len(body) == _SEGMENT.size)
    (size,) = _SEGMENT.unpack(body)
    return int(size)


def trace(traceparent: str) -> bytes:
    """Return the frame with the trace of the next call, in the form of W3C's Trace Context."""
    return frame_of(Kind.TRACE, traceparent.encode())


def trace_of(body: bytes) -> str:
    """Return the trace in a client's frame."""
    return body.decode("ascii", "replace")


def part(part_of: PartOf) -> bytes:
    """Return the frame with the command of a cluster of which the next call's command is a part."""
    return frame_of(Kind.MAP, _MAP.pack(part_of.map_version, part_of.command_id, part_of.is_check))


def part_of(body: bytes) -> PartOf:
    """Return the content of a client's frame."""
    check(len(body) == _MAP.size)
    return PartOf(*_MAP.unpack(body))


def call(
    verb: str, seconds: float, header: bytes, payload: bytes | memoryview, offset: int | None
) -> list[bytes | memoryview]:
    """Return the pieces of a request, without the payload if it is in the segment."""
    name = verb.encode()
    place = _INLINE if offset is None else offset
    fixed = _CALL.pack(seconds, len(header), place, len(payload))
    size = len(fixed) + len(name) + len(header) + (len(payload) if offset is None else 0)
    front = b"".join((_HEAD.pack(size, Kind.CALL, len(name)), fixed, name, header))
    return [front] if offset is not None or not len(payload) else [front, payload]


def call_of(body: bytes, name_bytes: int) -> Call:
    """Return the request in a frame."""
    if len(body) < _CALL.size + name_bytes:
        raise _garbage()
    seconds, header_bytes, offset, size = _CALL.unpack_from(body)
    begin = _CALL.size + name_bytes
    name = body[_CALL.size : begin].decode("ascii", "replace")
    if not seconds > 0:
        raise _garbage()
    header, inline, place = _parts(body, begin, header_bytes, offset, size)
    return Call(name, seconds, header, inline, place, size)


def answer(
    is_last: bool, header: bytes, payload: bytes | memoryview, offset: int | None
) -> list[bytes | memoryview]:
    """Return the pieces of an answer, without the payload if it is in the segment."""
    place = _INLINE if offset is None else offset
    fixed = _ANSWER.pack(len(header), place, len(payload))
    size = len(fixed) + len(header) + (len(payload) if offset is None else 0)
    kind = Kind.RESULT if is_last else Kind.PART
    front = b"".join((_HEAD.pack(size, kind, 0), fixed, header))
    return [front] if offset is not None or not len(payload) else [front, payload]


def answer_of(kind: int, body: bytes) -> Answer:
    """Return the answer in a frame."""
    if len(body) < _ANSWER.size:
        raise _garbage()
    header_bytes, offset, size = _ANSWER.unpack_from(body)
    header, inline, place = _parts(body, _ANSWER.size, header_bytes, offset, size)
    return Answer(kind == Kind.RESULT, header, inline, place, size)


def refusal(code: int, name: str, text: str, *, is_final: bool) -> bytes:
    """Return the frame that ends a call by an error."""
    return frame_of(Kind.ERROR, bytes([code, is_final]), f"{name}\n{text}".encode())


def refusal_of(body: bytes) -> Refusal:
    """Return the error in a frame."""
    name, _, text = body[2:].decode(errors="replace").partition("\n")
    return Refusal(body[0], name, text, bool(body[1]))


def _parts(
    body: bytes, begin: int, header_bytes: int, offset: int, size: int
) -> tuple[bytes, bytes, int | None]:
    """Return (header, inline payload, offset of the payload in the segment)."""
    end = begin + header_bytes
    is_inline = offset == _INLINE
    if end + (size if is_inline else 0) != len(body):
        raise _garbage()
    if not is_inline:
        return body[begin:end], b"", offset
    return body[begin:end], body[end:], None


def check(is_right: bool) -> None:
    """Raise InvalidArgumentError unless a condition of a valid frame is true."""
    if not is_right:
        raise _garbage()


def _garbage() -> InvalidArgumentError:
    return InvalidArgumentError("expected a frame of the shared-memory protocol, found garbage")

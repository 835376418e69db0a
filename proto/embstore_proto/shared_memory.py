"""What travels on the Unix socket of the shared-memory transport: frames.

A connection has one call at a time. Headers travel on the socket, and so do payloads of up to
INLINE_BYTES; larger ones lie in a *segment*: memory that the server makes, sealed at its size, and
passes to the client as a descriptor. A segment holds data alone: frames on the socket, of which
each side reads a byte once, say where the data lies and how much it is.

    GREETING   server    protocol, the id of its process
    HELLO      client    authorization, label
    SEGMENT    client    I need a segment of so many bytes
    SEGMENT    server    here it is, with its descriptor; the segment before is given up
    CALL       client    verb, header, payload; seconds that are left, bytes of the segment to keep
    RESULT     server    header, payload: the answer, or the last one
    PART       server    header, payload: an answer, others come
    ERROR      server    the error's class and text; the call has ended
    DEVICE_SEGMENT, ON_DEVICE    of arrays in a GPU's memory: see device_segment.py
    TRACE      client    the trace that the next CALL belongs to; nothing, of most calls
    MAP        client    the version of the map by which the next CALL was split; of shards only

A payload in the segment is named by its offset and size. Where a payload of the server lies in a
new segment, a SEGMENT comes before it. A client that does not want an answer any more ends its
connection; the place of an answer is free when the next CALL is sent. So a client that keeps an
answer's arrays sends the next call over another connection.

Integers are little-endian. `docs/formats.md` has the bytes.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from embstore.errors import InvalidArgumentError

PROTOCOL = b"embstore shared memory 1\n"

INLINE_BYTES = 16 << 10
"""A socket copies as much in a few microseconds, twice; a segment has to be asked for."""

_HEAD = struct.Struct("<IBB")
HEAD_BYTES = _HEAD.size
_CALL = struct.Struct("<dIQQ")
_ANSWER = struct.Struct("<IQQ")
_SEGMENT = struct.Struct("<Q")
_MAP = struct.Struct("<Q")

_INLINE = (1 << 64) - 1
"""No offset: the payload follows its header."""


class Kind(IntEnum):
    """What a frame is."""

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
    """A message of an answer."""

    is_last: bool
    header: bytes
    inline: bytes
    offset: int | None
    size: int


class Refusal(NamedTuple):
    """The error that ends a call: its class, "" of no class of ours, and its gRPC code."""

    code: int
    name: str
    text: str
    is_final: bool
    """It is no use to send the call again."""


def frame_of(kind: Kind, *parts: bytes, small: int = 0) -> bytes:
    """Return a frame of a kind."""
    return b"".join((_HEAD.pack(sum(map(len, parts)), kind, small), *parts))


def head_of(data: bytes | bytearray) -> tuple[int, int, int]:
    """Return (bytes of the body, kind, small number) of a frame's head."""
    return _HEAD.unpack_from(data)


def greeting(process: str) -> bytes:
    """Return what a server says first."""
    return frame_of(Kind.GREETING, PROTOCOL, process.encode())


def process_of(body: bytes) -> str:
    """Return the id of the process that greets."""
    if not body.startswith(PROTOCOL):
        raise InvalidArgumentError(
            f"expected a server that says {PROTOCOL!r}, found {bytes(body[:40])!r}: client and "
            "server are of versions too far apart"
        )
    return body[len(PROTOCOL) :].decode(errors="replace")


def hello(authorization: str, label: str) -> bytes:
    """Return what a client says first."""
    return frame_of(Kind.HELLO, f"{authorization}\n{label}".encode())


def said(body: bytes) -> tuple[str, str]:
    """Return (authorization, label) of a client."""
    authorization, _, label = body.decode(errors="replace").partition("\n")
    return authorization, label


def segment(size: int) -> bytes:
    """Return a request for a segment, or what goes with its descriptor."""
    return frame_of(Kind.SEGMENT, _SEGMENT.pack(size))


def segment_of(body: bytes) -> int:
    """Return the bytes of a segment."""
    check(len(body) == _SEGMENT.size)
    (size,) = _SEGMENT.unpack(body)
    return int(size)


def trace(traceparent: str) -> bytes:
    """Return what names the trace of the next call, as W3C's Trace Context does."""
    return frame_of(Kind.TRACE, traceparent.encode())


def trace_of(body: bytes) -> str:
    """Return the trace that a client names."""
    return body.decode("ascii", "replace")


def map_version(version: int) -> bytes:
    """Return what names the map by which the next call was split."""
    return frame_of(Kind.MAP, _MAP.pack(version))


def map_version_of(body: bytes) -> int:
    """Return the version that a client names."""
    check(len(body) == _MAP.size)
    (version,) = _MAP.unpack(body)
    return int(version)


def call(
    verb: str, seconds: float, header: bytes, payload: bytes | memoryview, offset: int | None
) -> list[bytes | memoryview]:
    """Return the pieces of a request; `payload` is left out where it lies at an offset."""
    name = verb.encode()
    place = _INLINE if offset is None else offset
    fixed = _CALL.pack(seconds, len(header), place, len(payload))
    size = len(fixed) + len(name) + len(header) + (len(payload) if offset is None else 0)
    front = b"".join((_HEAD.pack(size, Kind.CALL, len(name)), fixed, name, header))
    return [front] if offset is not None or not len(payload) else [front, payload]


def call_of(body: bytes, name_bytes: int) -> Call:
    """Return the request of a frame."""
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
    """Return the pieces of an answer."""
    place = _INLINE if offset is None else offset
    fixed = _ANSWER.pack(len(header), place, len(payload))
    size = len(fixed) + len(header) + (len(payload) if offset is None else 0)
    kind = Kind.RESULT if is_last else Kind.PART
    front = b"".join((_HEAD.pack(size, kind, 0), fixed, header))
    return [front] if offset is not None or not len(payload) else [front, payload]


def answer_of(kind: int, body: bytes) -> Answer:
    """Return the answer of a frame."""
    if len(body) < _ANSWER.size:
        raise _garbage()
    header_bytes, offset, size = _ANSWER.unpack_from(body)
    header, inline, place = _parts(body, _ANSWER.size, header_bytes, offset, size)
    return Answer(kind == Kind.RESULT, header, inline, place, size)


def refusal(code: int, name: str, text: str, *, is_final: bool) -> bytes:
    """Return what ends a call by an error."""
    return frame_of(Kind.ERROR, bytes([code, is_final]), f"{name}\n{text}".encode())


def refusal_of(body: bytes) -> Refusal:
    """Return the error of a frame."""
    name, _, text = body[2:].decode(errors="replace").partition("\n")
    return Refusal(body[0], name, text, bool(body[1]))


def _parts(
    body: bytes, begin: int, header_bytes: int, offset: int, size: int
) -> tuple[bytes, bytes, int | None]:
    """Return (header, inline payload, its offset in the segment)."""
    end = begin + header_bytes
    is_inline = offset == _INLINE
    if end + (size if is_inline else 0) != len(body):
        raise _garbage()
    if not is_inline:
        return body[begin:end], b"", offset
    return body[begin:end], body[end:], None


def check(is_right: bool) -> None:
    """Raise InvalidArgumentError, unless a frame is as it should be."""
    if not is_right:
        raise _garbage()


def _garbage() -> InvalidArgumentError:
    return InvalidArgumentError("expected a frame of the shared-memory protocol, found garbage")

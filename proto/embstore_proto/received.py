"""Received messages: they are split without copying their arrays, and assembled from chunks.

frame.py describes the parts of a message.
"""

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf import message as protobuf
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_proto import deltas, narrow
from embstore_proto.device_places import DEVICE_OFFSET, OnDevice, checked_place
from embstore_proto.frame import DTYPE_OF, HEADER_BYTES_MAX, NARROW
from embstore_proto.v1 import embstore_pb2 as pb

M = TypeVar("M", bound=protobuf.Message)


class Copies:
    """Counts the bytes that a transport has copied, not those that its caller copies."""

    def __init__(self) -> None:
        self.bytes = 0


class Growth:
    """Counts the decoded bytes of arrays that arrive in a smaller form, and bounds them."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def add(self, count: int, what: str) -> None:
        """Count `count` more bytes, or raise InvalidArgumentError."""
        if self.bytes + count > self._bytes_max:
            raise InvalidArgumentError(
                f"{what}: expected arrays of at most {self._bytes_max} bytes "
                "(limits.call_bytes_max) as float32 and int64, found "
                f"{self.bytes + count}; split the call"
            )
        self.bytes += count


class Received(NamedTuple):
    """A received bulk message, split into its parts."""

    header: bytes
    payload: memoryview
    copies: Copies | None = None
    """Set if the sender can still write the payload; then the payload's arrays are copied, and the
    copied bytes are counted."""
    growth: Growth | None = None
    """Set if the sender is not trusted; then the decoded size of the arrays is bounded."""
    is_read_once: bool = False
    """Whether the rows need no copy, because the executor of the command reads each row only
    once."""
    on_device: OnDevice | None = None
    """The payload in a GPU's memory; None: there is none."""


_FIELDS_MAX = 4
"""The number of fields to read. A valid message has fewer; a further field is repeated or
unknown."""


def _fields(message: memoryview) -> list[tuple[int, int | memoryview]]:
    """Return (field number, value) of the first fields of a serialised message that consists of
    varint and bytes fields."""
    found: list[tuple[int, int | memoryview]] = []
    position, end = 0, len(message)
    while position < end and len(found) < _FIELDS_MAX:
        tag = value = 0
        for of_value in (False, True):
            number = shift = 0
            byte = 0x80
            while byte >= 0x80:
                if position >= end or shift >= _VARINT_BITS:
                    raise _garbage(position, "its end" if position >= end else "no number")
                byte = message[position]
                number |= (byte & 0x7F) << shift
                position, shift = position + 1, shift + 7
            tag, value = (tag, number) if of_value else (number, value)
        if tag & 7 == 0:
            found.append((tag >> 3, value))
        elif tag & 7 == 2 and value <= end - position:
            found.append((tag >> 3, message[position : position + value]))
            position += value
        else:
            raise _garbage(position, "garbage")
    return found


_VARINT_BITS = 70


def _garbage(position: int, what: str) -> InvalidArgumentError:
    cut_off = ": it was cut off" if what == "its end" else ""
    return InvalidArgumentError(
        f"expected a protobuf message of embstore.v1, found {what} at byte {position}{cut_off}"
    )


def split(
    message: bytes | memoryview,
    header_bytes_max: int = HEADER_BYTES_MAX,
    growth: Growth | None = None,
) -> Received:
    """Split a bulk message into its parts, without a copy.

    Raises InvalidArgumentError if the message is incomplete, is no protobuf, or has unknown fields.
    """
    parts: dict[int, memoryview] = {}
    for number, value in _fields(memoryview(message)):
        if number not in (1, 2, 3) or isinstance(value, int) or number in parts:
            raise InvalidArgumentError(
                "expected a bulk message {header = 1, padding = 2, payload = 3}, each once, found "
                f"field {number}"
            )
        parts[number] = value
    empty = memoryview(b"")
    if len(parts.get(1, empty)) > header_bytes_max:
        raise InvalidArgumentError(
            f"expected a header of at most {header_bytes_max} bytes, found {len(parts[1])}"
        )
    return Received(bytes(parts.get(1, empty)), parts.get(3, empty), growth=growth)


def parse(kind: type[M], serialised: bytes) -> M:
    """Parse a message of a generated class; refuse unknown fields."""
    name = kind.DESCRIPTOR.full_name
    try:
        message: M = kind.FromString(serialised)
    except protobuf.DecodeError as exc:
        raise InvalidArgumentError(f"expected a serialised {name}: {exc}") from exc
    known = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != known:
        raise InvalidArgumentError(
            f"{name} has fields that this server does not know; is the client newer?"
        )
    return message


def array_of(
    received: Received, place: pb.Array, dtype: str, dimensions: int, what: str
) -> NDArray[Any]:
    """Return an array of a bulk message: a view if the array is aligned; a widened or decoded array
    if it arrived in a smaller form.

    Raises InvalidArgumentError if the dtype or the number of dimensions is not as expected, or the
    array is outside the payload; `what` names the array in the error.
    """
    expected = np.dtype(dtype)
    if place.dtype == pb.DTYPE_INT64 and expected == np.uint32:
        return _as_uint32(received, place, dimensions, what)
    if received.on_device is not None and place.offset >= DEVICE_OFFSET:
        there = checked_place(place, expected, dimensions, what)
        array: NDArray[Any] = received.on_device.array(there, what)  # or an engine's own array
        return array
    if place.dtype == pb.DTYPE_INT64_DELTA and expected == np.int64 and len(place.shape) == 1:
        return _summed_up(received, place, what)
    is_narrow = expected == np.float32 and place.dtype in NARROW.values()
    found = DTYPE_OF.get(place.dtype)
    if (found != expected and not is_narrow) or len(place.shape) != dimensions:
        raise InvalidArgumentError(
            f"{what}: expected {expected.name} of {dimensions} dimensions, found "
            f"{found.name if found else 'no dtype'} of shape {tuple(place.shape)}"
        )
    count = math.prod(place.shape)
    stored = found if is_narrow else expected
    assert stored is not None
    size = count * stored.itemsize
    if place.offset + size > len(received.payload):
        raise InvalidArgumentError(
            f"{what}: expected {size} bytes at offset {place.offset}, found a payload of "
            f"{len(received.payload)} bytes"
        )
    shape = tuple(place.shape)
    if not count:
        if max(shape) > 1 << 40:
            raise InvalidArgumentError(f"{what}: expected a shape in bounds, found {shape}")
        return np.empty(shape, expected)
    flat = np.frombuffer(received.payload, stored, count, place.offset)
    if is_narrow:
        if received.growth is not None:
            received.growth.add(count * expected.itemsize, what)
        return narrow.widened(flat).reshape(shape)
    is_changing = received.copies is not None and not (received.is_read_once and dimensions == 2)
    if is_changing or not flat.flags.aligned:
        if received.copies is not None:
            received.copies.bytes += size
        flat = flat.copy()
    return flat.reshape(shape)


def _as_uint32(
    received: Received, place: pb.Array, dimensions: int, what: str
) -> NDArray[np.uint32]:
    """Return an array of int64 as uint32, for senders in languages without uint32. The values are
    checked, so the array must be on the host."""
    wide = array_of(received._replace(on_device=None), place, "<i8", dimensions, what)
    if len(wide) and not 0 <= wide.min() <= wide.max() <= 2**32 - 1:
        raise InvalidArgumentError(
            f"{what}: expected 0 to {2**32 - 1}, found {wide.min()} to {wide.max()}"
        )
    return wide.astype(np.uint32)


def _summed_up(received: Received, place: pb.Array, what: str) -> NDArray[np.int64]:
    """Return keys that were sent as deltas."""
    (count,) = place.shape
    if place.offset + place.size > len(received.payload) or count > place.size:
        raise InvalidArgumentError(
            f"{what}: expected {place.size} bytes at offset {place.offset} for {count} numbers as "
            f"deltas, found a payload of {len(received.payload)} bytes"
        )
    if received.growth is not None:
        received.growth.add(count * np.dtype(np.int64).itemsize, what)
    encoded = np.frombuffer(received.payload[place.offset : place.offset + place.size], np.uint8)
    if received.copies is not None:
        received.copies.bytes += place.size
        encoded = encoded.copy()
    return deltas.decode(encoded, count, what)


class Assembly:
    """A bulk message that is being received as a stream: its pieces are joined in one buffer.

    The first chunk contains the size of the message. The buffer is allocated then, but the system
    provides memory only for pieces that arrive.
    """

    def __init__(self, bytes_max: int, limit: str = "limits.call_bytes_max") -> None:
        """`bytes_max` is the value of the limit with the name `limit`."""
        self._bytes_max, self._limit = bytes_max, limit
        self._received_bytes = 0
        self._buffer: NDArray[np.uint8] | None = None

    @property
    def total_bytes(self) -> int:
        """Size of the whole message in bytes; 0 before the first chunk."""
        return 0 if self._buffer is None else len(self._buffer)

    @property
    def is_whole(self) -> bool:
        """Whether every byte has arrived."""
        return self._buffer is not None and self._received_bytes == len(self._buffer)

    def announced(self, chunk: bytes) -> int:
        """Return the size that a first chunk announces, in bytes; raise an error for a size above
        the limit."""
        total, _ = _chunk(chunk)
        if total > self._bytes_max:
            raise InvalidArgumentError(
                f"expected a call of at most {self._bytes_max} bytes ({self._limit}), found "
                f"{total}; split the call"
            )
        return total

    def add(self, chunk: bytes) -> None:
        """Add the next serialised Chunk.

        Raises InvalidArgumentError if the chunk is invalid or out of order, or if there are more
        bytes than announced or allowed.
        """
        total, piece = _chunk(chunk)
        if (self._buffer is None) != (total > 0):
            raise InvalidArgumentError(
                "stream: expected total_bytes in the first chunk and in no other, found "
                f"{total} in {'the first' if self._buffer is None else 'a later one'}"
            )
        if self._buffer is None:
            self._buffer = np.empty(self.announced(chunk), np.uint8)
        assert self._buffer is not None
        end = self._received_bytes + len(piece)
        if not len(piece) or end > len(self._buffer):
            raise InvalidArgumentError(
                f"stream: expected 1 to {len(self._buffer) - self._received_bytes} bytes more, "
                f"found a chunk of {len(piece)}"
            )
        self._buffer[self._received_bytes : end] = piece
        self._received_bytes = end

    def whole(self) -> memoryview:
        """Return the whole message; raise InvalidArgumentError if bytes are missing."""
        if not self.is_whole:
            raise InvalidArgumentError(
                f"stream: expected {self.total_bytes or 'a chunk with total_bytes'}, found its end "
                f"after {self._received_bytes} bytes: it was cut off"
            )
        assert self._buffer is not None
        return self._buffer.data


def _chunk(chunk: bytes) -> tuple[int, NDArray[np.uint8]]:
    """Return (total_bytes, piece) of a serialised Chunk."""
    parts: dict[int, Any] = {}
    for number, value in _fields(memoryview(chunk)):
        if number not in (1, 2) or number in parts or isinstance(value, int) != (number == 1):
            raise InvalidArgumentError(
                "stream: expected a Chunk {total_bytes = 1, piece = 2}, each at most once, found "
                f"field {number}"
            )
        parts[number] = value
    return parts.get(1, 0), np.frombuffer(parts.get(2, b""), np.uint8)

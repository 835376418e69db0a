"""Bulk messages, framed by hand: valid protobuf whose arrays are never copied by protobuf.

Every bulk message has one shape:

    header  = 1   a message: what the call is, and where each array lies in the payload
    padding = 2   any bytes: lets the payload begin at a multiple of 64 bytes of the message
    payload = 3   the arrays' bytes, little-endian, row-major, each at a multiple of 64

A sender (`Message`, `Blank`) has its arrays written once, where they are sent from: into the bytes
that gRPC takes; a stream's Chunks are joined from them piece by piece. A receiver (`split`,
`array_of`) gets views of the bytes that came. Protobuf's own `bytes` fields would copy each array
twice on either side.

Where sender and receiver share memory (shared_memory.py), a message is its header and its payload
apart, and has no padding: the payload's memory is aligned. What the other side can still write is
copied before it is looked at (`Copies`).

For links that are slower than the machine, rows and gradients may have two bytes a value (`narrow`)
and ascending keys stand as their differences (`deltas`): a sender makes them so, whoever receives
them gets float32 and int64, and a server counts what they grow to (`Growth`).

Any protobuf library can write and read the same messages; what it does not align is copied here,
once. All sizes are checked with Python integers, so no offset or shape can overflow.
"""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf import message as protobuf
from numpy.typing import NDArray

from embstore.arrays import check_on_host
from embstore.errors import InvalidArgumentError
from embstore_proto import deltas, narrow
from embstore_proto.deltas import Deltas
from embstore_proto.device_places import DEVICE_OFFSET, OnDevice, checked_place
from embstore_proto.v1 import embstore_pb2 as pb

CHUNK_BYTES = 1 << 20
"""A stream's pieces: larger ones were no faster, smaller ones cost a wake-up each."""

CHUNK_BYTES_MAX = 4 << 20
"""What a receiver takes of others: the default limit of gRPC libraries."""

HEADER_BYTES_MAX = 1 << 20
"""Names and places of the arrays of thousands of tables. A header is parsed into objects of many
times its size, a payload is not."""

ALIGNMENT = 64
"""Of arrays in a payload."""
_FRONT_BYTES_MAX = 3 + 5 + 5 + 6
"""Tags and lengths of the three fields, and room to make the padding's length come out."""

_HEADER_TAG, _PADDING_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12", b"\x1a"
_TOTAL_TAG, _PIECE_TAG = b"\x08", b"\x12"

M = TypeVar("M", bound=protobuf.Message)

_DTYPES: dict[pb.DType, np.dtype[Any]] = {
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_UINT32: np.dtype("<u4"),
    pb.DTYPE_FLOAT16: narrow.STORED["float16"],
    pb.DTYPE_BFLOAT16: narrow.STORED["bfloat16"],
    pb.DTYPE_UINT8: np.dtype("u1"),
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
NARROW = {"float16": pb.DTYPE_FLOAT16, "bfloat16": pb.DTYPE_BFLOAT16}
"""In place of float32."""
DTYPES = [pb.DTYPE_INT64, pb.DTYPE_FLOAT32, pb.DTYPE_UINT32, pb.DTYPE_UINT8]
DTYPES += [*NARROW.values(), pb.DTYPE_INT64_DELTA]
"""Whatever an array may have."""


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Sending

Writer = Callable[[NDArray[Any]], object]
"""Computes an array into memory of its shape."""
Copy = Callable[[NDArray[Any], NDArray[Any]], object]


class Computed(NamedTuple):
    """A float32 array that is computed where it is sent from."""

    shape: tuple[int, ...]
    write: Writer


class Message:
    """A bulk message in the making: arrays first, then the header that describes them.

    Of a unary call, arrays are written where they are sent from (see `Blank`), when the message is
    joined; until then they must keep their content.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[pb.Array, NDArray[Any] | Writer]] = []
        self.payload_bytes = 0

    def add(self, array: "NDArray[Any] | Computed | Deltas") -> pb.Array:
        """Append an array of a dtype of the wire, and return its place for the header; uint16 are
        the bits of bfloat16."""
        if isinstance(array, Computed):
            return self._add(pb.DTYPE_FLOAT32, array.shape, array.write)
        if isinstance(array, Deltas):
            size = len(array.encoded)
            stored = self._add(pb.DTYPE_UINT8, (size,), array.encoded)
            deltas_of = pb.DTYPE_INT64_DELTA
            return pb.Array(dtype=deltas_of, shape=[len(array)], offset=stored.offset, size=size)
        check_on_host(array)
        return self._add(_NUMBERS[array.dtype], array.shape, np.ascontiguousarray(array))

    def _add(
        self, dtype: pb.DType, shape: tuple[int, ...], part: "NDArray[Any] | Writer"
    ) -> pb.Array:
        offset = -(-self.payload_bytes // ALIGNMENT) * ALIGNMENT
        place = pb.Array(dtype=dtype, shape=shape, offset=offset)
        self._parts.append((place, part))
        self.payload_bytes = offset + _DTYPES[dtype].itemsize * math.prod(shape)
        return place

    def total_bytes(self, header: bytes) -> int:
        """Return the size of the whole message with this header."""
        return len(self._front(header)) + self.payload_bytes

    def joined(self, header: bytes) -> bytes:
        """Return the whole message with its serialised header, for a unary call."""
        front = self._front(header)
        message = _blank_bytes(len(front) + self.payload_bytes)
        memory = _memory_of(message)
        memory[: len(front)] = front
        self.write(memory[len(front) :])
        return message

    def write(self, memory: memoryview, copy: "Copy | None" = None) -> None:
        """Write the payload where it is sent from; `copy(source, target)` copies an array."""
        end = 0
        for place, part in self._parts:
            memory[end : place.offset] = bytes(place.offset - end)
            out = _array_in(memory, place.offset, _DTYPES[place.dtype], place)
            if not isinstance(part, np.ndarray):
                part(out)
            elif copy is not None:
                copy(part, out)
            else:
                out[:] = part
            end = place.offset + out.nbytes

    def framed(self, header: bytes) -> "Framed":
        """Return the message in parts, for a stream, whose chunks are joined from them."""
        front = self._front(header)
        parts: list[memoryview | bytes] = [front]
        end = 0
        for place, part in self._parts:
            if isinstance(part, np.ndarray):
                array = part
            else:
                array = np.empty(tuple(place.shape), _DTYPES[place.dtype])
                part(array)
            parts += [bytes(place.offset - end), array.data.cast("B") if array.size else b""]
            end = place.offset + array.nbytes
        return Framed(parts, len(front) + self.payload_bytes, header)

    def _front(self, header: bytes) -> bytes:
        front = _HEADER_TAG + _varint(len(header)) + header
        payload = _PAYLOAD_TAG + _varint(self.payload_bytes)
        padding = -(len(front) + 2 + len(payload)) % ALIGNMENT
        return front + _PADDING_TAG + _varint(padding) + bytes(padding) + payload


def _array_in(
    memory: memoryview, begin: int, dtype: np.dtype[Any], place: pb.Array
) -> NDArray[Any]:
    end = begin + dtype.itemsize * math.prod(place.shape)
    return np.frombuffer(memory[begin:end], dtype).reshape(tuple(place.shape))


class Blank:
    """A bulk message made before its arrays are known: they are filled where they are sent from.

    gRPC takes a message as one bytes object. Joining it from arrays is a copy of everything, which
    at several MiB costs as much as a lookup; so the object is made first, blank, as the C interface
    of bytes allows until anybody else sees it, and `arrays` are views into it. The header comes
    last, into room left for it in front; what it does not need is padding.

    `header_room` is the bytes that the header will take, at most; `shapes` are those of float32
    arrays to fill, and `others` arrays that the message has as well. `lend` returns the memory for
    a payload of so many bytes, where that does not travel with the header. With a `dtype` of
    NARROW the arrays to fill lie apart, and `round` makes the message of them.
    """

    def __init__(
        self,
        header_room: int,
        shapes: Sequence[tuple[int, ...]],
        others: "Sequence[NDArray[Any]]" = (),
        lend: Callable[[int], memoryview] | None = None,
        dtype: str = "float32",
    ) -> None:
        self._is_apart = lend is not None
        room = 0 if self._is_apart else header_room + _FRONT_BYTES_MAX
        self._front_bytes = -(-room // ALIGNMENT) * ALIGNMENT
        rows_dtype = NARROW.get(dtype, pb.DTYPE_FLOAT32)
        layout = [(rows_dtype, shape) for shape in shapes]
        layout += [(_NUMBERS[array.dtype], array.shape) for array in others]
        self.places: list[pb.Array] = []
        ends = [0]
        for stored_as, shape in layout:
            offset = -(-ends[-1] // ALIGNMENT) * ALIGNMENT
            self.places.append(pb.Array(dtype=stored_as, shape=shape, offset=offset))
            ends.append(offset + _DTYPES[stored_as].itemsize * math.prod(shape))
        self._payload_bytes = ends[-1]
        if lend is None:
            self._message = _blank_bytes(self._front_bytes + self._payload_bytes)
            self.memory = _memory_of(self._message)
        else:
            self.memory = lend(self._payload_bytes)
        made: list[NDArray[Any]] = []
        for place, end in zip(self.places, ends, strict=False):
            begin, gap = self._front_bytes + place.offset, self._front_bytes + end
            self.memory[gap:begin] = bytes(begin - gap)  # else it would tell what the memory held
            made.append(_array_in(self.memory, begin, _DTYPES[place.dtype], place))
        self.arrays: list[NDArray[np.float32]] = made[: len(shapes)]
        self._dtype, self._stored = dtype, self.arrays if dtype in NARROW else []
        if dtype in NARROW:
            self.arrays = [np.empty(shape, np.float32) for shape in shapes]
        for out, array in zip(made[len(shapes) :], others, strict=True):
            out[:] = array
        self._place_of = {
            id(array): place
            for array, place in zip((*self.arrays, *others), self.places, strict=True)
        }
        self._others = others  # alive, so that no other array has the id of one

    def add(self, array: NDArray[Any]) -> pb.Array:
        """Return the place of an array of the message, for the header."""
        return self._place_of[id(array)]

    @property
    def rounded_bytes(self) -> int:
        """Bytes of the arrays that `round` has to round; 0: there is nothing to do."""
        return sum(array.nbytes for array, _ in zip(self.arrays, self._stored, strict=False))

    def round(self) -> None:
        """Round the arrays into the message, where it has a narrow dtype. Once they are filled, and
        before `framed`."""
        for array, stored in zip(self.arrays, self._stored, strict=False):
            narrow.rounded(array, self._dtype, stored)
        self._stored = []

    def framed(self, header: bytes) -> "Framed":
        """Return the whole message with its serialised header. The arrays may change no more."""
        if self._is_apart:
            return Framed([b""], len(header) + self._payload_bytes, header, self.memory)
        payload = _PAYLOAD_TAG + _varint(self._payload_bytes)
        front = _HEADER_TAG + _varint(len(header)) + header + _PADDING_TAG
        room = self._front_bytes - len(front) - len(payload)
        padding = next((n for n in range(room, -1, -1) if n + len(_varint(n)) == room), None)
        if padding is None:  # the header is larger than its room: the front is made anew, beside
            rest = memoryview(self._message)[self._front_bytes :]
            front = _HEADER_TAG + _varint(len(header)) + header + payload
            return Framed([front, rest], len(front) + len(rest), header)
        front += _varint(padding) + bytes(padding) + payload
        self.memory[: len(front)] = front
        return Framed([self._message], len(self._message), header)


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.argtypes, _address_of.restype = (ctypes.py_object,), ctypes.c_void_p


def _blank_bytes(size: int) -> bytes:
    """Return a new bytes object of no particular content, which its maker may still write."""
    blank: bytes = _new_bytes(None, size)
    return blank


class _Owner:
    """Lends NumPy the memory of a bytes object, which lives as long as an array of it does.

    (A ctypes array would do, but ctypes keeps a type for every length there ever was.)
    """

    def __init__(self, own: bytes) -> None:
        self.own = own
        self.__array_interface__ = {
            "data": (_address_of(own), False),
            "shape": (len(own),),
            "typestr": "|u1",
            "version": 3,
        }


def _memory_of(own: bytes) -> memoryview:
    """Return the memory of a bytes object that nobody else has, to be written; keeps it alive."""
    return np.asarray(_Owner(own)).data


def writable(message: bytes) -> memoryview:
    """Return a received message as memory that may be written: arrays of it are their reader's own.

    For the one reference that there is, as gRPC hands it over: to copy the rows of a lookup only
    so that a trainer may change them would cost as much as to look them up.
    """
    return _memory_of(message) if message else memoryview(b"")


class Framed(NamedTuple):
    """A serialised message, in parts: of a bulk message its front, then its payload."""

    parts: list[memoryview | bytes]
    total_bytes: int
    header: bytes = b""
    """Of a control message, all of it."""
    lent: memoryview | None = None
    """Where the payload is already, of a message whose payload does not travel with it."""

    def joined(self) -> bytes:
        """Return the message for a unary call."""
        if len(self.parts) == 1 and isinstance(self.parts[0], bytes):
            return self.parts[0]
        return b"".join(self.parts)

    def chunks(self) -> Iterator[bytes]:
        """Yield the message as serialised Chunks of about CHUNK_BYTES."""
        front = _TOTAL_TAG + _varint(self.total_bytes)
        for pieces, size in self._pieces():
            yield b"".join([front, _PIECE_TAG, _varint(size), *pieces])
            front = b""

    def _pieces(self) -> Iterator[tuple[list[memoryview | bytes], int]]:
        pieces: list[memoryview | bytes] = []
        room = CHUNK_BYTES
        for part in self.parts:
            view = memoryview(part)
            while len(view) >= room:
                pieces.append(view[:room])
                yield pieces, CHUNK_BYTES
                view, pieces, room = view[room:], [], CHUNK_BYTES
            if len(view):
                pieces.append(view)
                room -= len(view)
        if pieces:
            yield pieces, CHUNK_BYTES - room


# Receiving


class Copies:
    """Counts the bytes that a transport copied, beside those that its caller wrote or read."""

    def __init__(self) -> None:
        self.bytes = 0


class Growth:
    """Counts the bytes of arrays that came smaller than they are, within a bound."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def add(self, count: int, what: str) -> None:
        """Count `count` bytes more, or raise InvalidArgumentError."""
        if self.bytes + count > self._bytes_max:
            raise InvalidArgumentError(
                f"{what}: expected arrays of at most {self._bytes_max} bytes "
                "(limits.call_bytes_max) as float32 and int64, found "
                f"{self.bytes + count}; split the call"
            )
        self.bytes += count


class Received(NamedTuple):
    """A bulk message taken apart."""

    header: bytes
    payload: memoryview
    copies: Copies | None = None
    """Of a payload that its sender can still write: its arrays are copied, and counted here."""
    growth: Growth | None = None
    """Of a sender that is not trusted."""
    is_read_once: bool = False
    """Whoever executes the command reads its rows once, so that they need no copy."""
    on_device: OnDevice | None = None
    """What has the arrays that lie in a GPU's memory."""


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (field number, value) of a serialised message with varint and bytes fields only."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        value, position = _read_varint(message, position)
        match tag & 7:
            case 0:
                yield tag >> 3, value
            case 2 if value <= len(message) - position:
                yield tag >> 3, message[position : position + value]
                position += value
            case _:
                raise InvalidArgumentError(
                    f"expected a protobuf message of embstore.v1, found garbage at byte {position}"
                )


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise InvalidArgumentError(
                f"expected a protobuf message of embstore.v1, found its end at byte {position}: "
                "it was cut off"
            )
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidArgumentError(
        f"expected a protobuf message of embstore.v1, found no number at byte {position}"
    )


def split(message: bytes | memoryview, header_bytes_max: int = HEADER_BYTES_MAX) -> Received:
    """Take a bulk message apart, without a copy.

    Raises InvalidArgumentError: it is cut off, garbage, or has fields that a bulk message has not.
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
    return Received(bytes(parts.get(1, empty)), parts.get(3, empty))


def parse(kind: type[M], serialised: bytes) -> M:
    """Parse a message of a generated class; fields that it does not know are refused."""
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
    received: Received, place: pb.Array, dtype: type[np.generic], dimensions: int, what: str
) -> NDArray[Any]:
    """Return an array of a bulk message, as a view where it is aligned; widened, or summed up, if
    it came smaller.

    Raises InvalidArgumentError: another dtype or number of dimensions, or outside the payload;
    `what` names the array in the message.
    """
    if received.on_device is not None and place.offset >= DEVICE_OFFSET:
        there = checked_place(place, dtype, dimensions, what)
        array: NDArray[Any] = received.on_device.array(there, what)  # or what the engine adopts
        return array
    expected = np.dtype(dtype).newbyteorder("<")
    if place.dtype == pb.DTYPE_INT64_DELTA and expected == np.int64 and len(place.shape) == 1:
        return _summed_up(received, place, what)
    is_narrow = expected == np.float32 and place.dtype in NARROW.values()
    found = _DTYPES.get(place.dtype)
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


def _summed_up(received: Received, place: pb.Array, what: str) -> NDArray[np.int64]:
    """Return the keys that came as deltas."""
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
    """A bulk message in the receiving: the pieces of a stream, joined where they belong.

    The first chunk says how many bytes the message has; memory is taken then, and by the system
    only where pieces really come.
    """

    def __init__(self, bytes_max: int, limit: str = "limits.call_bytes_max") -> None:
        """`bytes_max` is the limit of this name."""
        self._bytes_max, self._limit = bytes_max, limit
        self._received_bytes = 0
        self._buffer: NDArray[np.uint8] | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole message; 0 before the first chunk."""
        return 0 if self._buffer is None else len(self._buffer)

    @property
    def is_whole(self) -> bool:
        """Whether every byte has come."""
        return self._buffer is not None and self._received_bytes == len(self._buffer)

    def announced(self, chunk: bytes) -> int:
        """Return how many bytes a first chunk announces, if they are allowed."""
        total, _ = _chunk(chunk)
        if total > self._bytes_max:
            raise InvalidArgumentError(
                f"expected a call of at most {self._bytes_max} bytes ({self._limit}), found "
                f"{total}; split the call"
            )
        return total

    def add(self, chunk: bytes) -> None:
        """Take the next serialised Chunk.

        Raises InvalidArgumentError: garbage, a wrong order, or more bytes than were announced or
        allowed.
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
        """Return the message, if no bytes are missing."""
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

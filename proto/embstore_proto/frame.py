"""Bulk messages, framed by hand: valid protobuf whose arrays are never copied by protobuf.

Every bulk message has one shape:

    header  = 1   a message: what the call is, and where each array lies in the payload
    padding = 2   any bytes: lets the payload begin at a multiple of 64 bytes of the message
    payload = 3   the arrays' bytes, little-endian, row-major, each at a multiple of 64

A sender (`Message`, `Blank`) writes its arrays once, into the bytes object that gRPC sends. For a
stream, the Chunks are joined from the arrays piece by piece. A receiver (`split`, `array_of`) gets
views of the received bytes. Protobuf's own `bytes` fields would copy each array twice on each side.

If sender and receiver share memory (shared_memory.py), the header and the payload of a message are
separate, without padding, since the payload's memory is aligned. Memory that the other side can
still write is copied before it is checked (`Copies`).

For links that are slower than the machine, rows and gradients can have two bytes per value
(`narrow`), and ascending keys can be sent as their differences (`deltas`). A sender encodes them,
and a receiver gets float32 and int64. A server counts the bytes of the arrays that it decodes
(`Growth`).

Any protobuf library can write and read the same messages; if it does not align the arrays, this
module copies them once. All sizes are checked as Python integers, so no offset or shape can
overflow.
"""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore_proto import narrow
from embstore_proto.deltas import Deltas
from embstore_proto.v1 import embstore_pb2 as pb

CHUNK_BYTES = 1 << 20
"""Size of the pieces of a stream. Larger pieces were no faster; with smaller pieces there are more
wake-ups."""

CHUNK_BYTES_MAX = 4 << 20
"""The largest chunk that a receiver accepts: the default limit of gRPC libraries."""

HEADER_BYTES_MAX = 1 << 20
"""Enough for the names and positions of the arrays of thousands of tables. A header is bounded
because it is parsed into objects of many times its size; a payload is not."""

ALIGNMENT = 64
"""Alignment of the arrays in a payload."""
_FRONT_BYTES_MAX = 3 + 5 + 5 + 6
"""The maximum size in bytes of the tags and lengths of the three fields, with spare bytes by which
the padding's length is adjusted."""

_HEADER_TAG, _PADDING_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12", b"\x1a"
_TOTAL_TAG, _PIECE_TAG = b"\x08", b"\x12"

DTYPE_OF: dict[pb.DType, np.dtype[Any]] = {
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_UINT32: np.dtype("<u4"),
    pb.DTYPE_FLOAT16: narrow.STORED["float16"],
    pb.DTYPE_BFLOAT16: narrow.STORED["bfloat16"],
    pb.DTYPE_UINT8: np.dtype("u1"),
}
_NUMBERS = {dtype: number for number, dtype in DTYPE_OF.items()}
NARROW = {"float16": pb.DTYPE_FLOAT16, "bfloat16": pb.DTYPE_BFLOAT16}
"""The dtypes that can replace float32."""
DTYPES = [pb.DTYPE_INT64, pb.DTYPE_FLOAT32, pb.DTYPE_UINT32, pb.DTYPE_UINT8]
DTYPES += [*NARROW.values(), pb.DTYPE_INT64_DELTA]
"""All dtypes that an array can have."""


@lru_cache(1 << 12)
def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Sending

Writer = Callable[[NDArray[Any]], object]
"""A function that computes an array, and writes it into a given array of the same shape."""
Copy = Callable[[NDArray[Any], NDArray[Any]], object]


def aligned(offset: int) -> int:
    """Return the smallest aligned offset that is not below `offset`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


class Computed(NamedTuple):
    """A float32 array that is computed directly in the memory from which it is sent."""

    shape: tuple[int, ...]
    write: Writer


class Message:
    """A bulk message being built: arrays first, then the header that describes them.

    For a unary call, arrays are written to the message (see `Blank`) when it is joined. They must
    not change until then.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[pb.Array, NDArray[Any] | Writer]] = []
        self.payload_bytes = 0

    def add(self, array: "NDArray[Any] | Computed | Deltas") -> pb.Array:
        """Append an array of a dtype in `DTYPE_OF`, and return its description with its position,
        for the header. The values of a uint16 array are the bits of bfloat16 values."""
        part: NDArray[Any] | Writer
        if isinstance(array, Computed):
            dtype, shape, part = pb.DTYPE_FLOAT32, array.shape, array.write
        elif isinstance(array, Deltas):
            dtype, shape, part = pb.DTYPE_UINT8, array.encoded.shape, array.encoded
        else:
            dtype, shape, part = _NUMBERS[array.dtype], array.shape, np.ascontiguousarray(array)
        offset = aligned(self.payload_bytes)
        place = pb.Array(dtype=dtype, shape=shape, offset=offset)
        self._parts.append((place, part))
        self.payload_bytes = offset + DTYPE_OF[dtype].itemsize * math.prod(shape)
        if isinstance(array, Deltas):
            size, deltas = len(array.encoded), pb.DTYPE_INT64_DELTA
            return pb.Array(dtype=deltas, shape=[len(array)], offset=offset, size=size)
        return place

    def total_bytes(self, header: bytes) -> int:
        """Return the size of the whole message with this header, in bytes."""
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
        """Write the payload into the message's memory; `copy(source, target)` copies an array."""
        end = 0
        for place, part in self._parts:
            memory[end : place.offset] = bytes(place.offset - end)
            out = _array_in(memory, place.offset, DTYPE_OF[place.dtype], place)
            if not isinstance(part, np.ndarray):
                part(out)
            elif copy is not None:
                copy(part, out)
            else:
                out[:] = part
            end = place.offset + out.nbytes

    def framed(self, header: bytes) -> "Framed":
        """Return the message in parts, for a stream: its chunks are joined from these parts."""
        front = self._front(header)
        parts: list[memoryview | bytes] = [front]
        end = 0
        for place, part in self._parts:
            if isinstance(part, np.ndarray):
                array = part
            else:
                array = np.empty(tuple(place.shape), DTYPE_OF[place.dtype])
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
    """A bulk message made before its arrays are known: the arrays are filled inside the message.

    gRPC accepts a message as one bytes object. Joining it from arrays copies everything, which for
    several MiB costs as much as a lookup. Therefore the bytes object is made first, without
    content; Python's C API permits writing into a bytes object until other code has seen it.
    `arrays` are views into the object. The header is written last, into room reserved in front of
    the arrays; the rest of that room becomes padding.

    `header_room` is the maximum size of the header in bytes. `shapes` are the shapes of the float32
    arrays to fill, and `others` are arrays that the message has as well. If the payload is not sent
    with the header, `lend` returns the memory for a payload of a given size. If `dtype` is in
    NARROW, the arrays to fill are outside the message, and `round` writes them into it.
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
        self._front_bytes = aligned(room)
        rows_dtype = NARROW.get(dtype, pb.DTYPE_FLOAT32)
        layout = list(zip(repeat(rows_dtype), shapes, strict=False))
        if others:
            layout += [(_NUMBERS[array.dtype], array.shape) for array in others]
        self.places: list[pb.Array] = []
        ends = [0]
        for stored_as, shape in layout:
            offset = aligned(ends[-1])
            self.places.append(pb.Array(dtype=stored_as, shape=shape, offset=offset))
            ends.append(offset + DTYPE_OF[stored_as].itemsize * math.prod(shape))
        self._payload_bytes = ends[-1]
        if lend is None:
            self._message = _blank_bytes(self._front_bytes + self._payload_bytes)
            self.memory = _memory_of(self._message)
        else:
            self.memory = lend(self._payload_bytes)
        made: list[NDArray[Any]] = []
        for place, end in zip(self.places, ends, strict=False):
            begin, gap = self._front_bytes + place.offset, self._front_bytes + end
            self.memory[gap:begin] = bytes(begin - gap)  # else it would reveal old content
            made.append(_array_in(self.memory, begin, DTYPE_OF[place.dtype], place))
        self.arrays: list[NDArray[np.float32]] = made[: len(shapes)]
        self._dtype, self._stored = dtype, self.arrays if dtype in NARROW else []
        if dtype in NARROW:
            self.arrays = [np.empty(shape, np.float32) for shape in shapes]
        for out, array in zip(made[len(shapes) :], others, strict=True):
            out[:] = array
        ids = map(id, (*self.arrays, *others))
        self._place_of = dict(zip(ids, self.places, strict=True))
        self._others = others  # kept alive, so that no other array gets the same id

    def add(self, array: NDArray[Any]) -> pb.Array:
        """Return the description and position of an array of the message, for the header."""
        return self._place_of[id(array)]

    @property
    def rounded_bytes(self) -> int:
        """Size of the arrays that `round` has to round, in bytes; 0: there are none."""
        return sum([array.nbytes for array in self.arrays]) if self._stored else 0

    def round(self) -> None:
        """If the message has a narrow dtype, round the arrays into the message. Call this method
        after filling the arrays, and before `framed`."""
        for array, stored in zip(self.arrays, self._stored, strict=False):
            narrow.rounded(array, self._dtype, stored)
        self._stored = []

    def framed(self, header: bytes) -> "Framed":
        """Return the whole message with its serialised header. Arrays must not change any more."""
        if self._is_apart:
            return Framed([b""], len(header) + self._payload_bytes, header, self.memory)
        payload = _PAYLOAD_TAG + _varint(self._payload_bytes)
        front = _HEADER_TAG + _varint(len(header)) + header + _PADDING_TAG
        room = self._front_bytes - len(front) - len(payload)
        padding = room
        while padding >= 0 and padding + len(_varint(padding)) != room:
            padding -= 1
        if padding < 0:  # the header is larger than its room: the front is made separately
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
    """Return a new bytes object without defined content, to which its maker can still write."""
    blank: bytes = _new_bytes(None, size)
    return blank


class _Owner:
    """Makes the memory of a bytes object available to NumPy; its arrays keep the object alive.

    (A ctypes array would serve, too, but ctypes stores a type for every length that was ever used.)
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
    """Return the memory of a bytes object as writable memory, which keeps the object alive. No
    other code may refer to the object."""
    return np.asarray(_Owner(own)).data


def writable(message: bytes) -> memoryview:
    """Return a received message as writable memory, so that its reader can change the arrays.

    This is allowed because gRPC passes the only reference to the message. To copy the rows of a
    lookup, only so that they are writable, would cost as much as the lookup.
    """
    return _memory_of(message) if message else memoryview(b"")


class Framed(NamedTuple):
    """A serialised message in parts: for a bulk message, its front and then its payload."""

    parts: list[memoryview | bytes]
    total_bytes: int
    header: bytes = b""
    """The serialised header; of a control message, the whole message."""
    lent: memoryview | None = None
    """The memory that already contains the payload, if the payload is not sent with the message."""

    def joined(self) -> bytes:
        """Return the message as one bytes object, for a unary call."""
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

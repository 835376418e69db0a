"""Messages that are almost right: valid ones, changed where a parser, a check or a handler looks.

A mutation knows the form of protobuf, not the .proto file: a message is fields, a field may be a
message again. So it is as deep as the messages are, and of new ones nothing has to be said here.

    of bytes     bits flipped, cut off, pieces left out, doubled, or replaced by noise
    of fields    left out, doubled, swapped, of another number or type; numbers that are extreme, or
                 longer than a varint may be; lengths that lie; pieces of other methods' messages
    of chunks    totals that lie, chunks left out, doubled, swapped, mutated, none at all

Every choice is that of one generator, so a seed says what was sent.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from embstore_proto.v1 import embstore_pb2 as pb

EXTREMES = (0, 1, 2, 127, 128, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**63 - 1, 2**63)
TEXTS = (b"", b"a", b"\xff\xfe", b"../../x", b"a" * 5000, "\U0001f600".encode() * 50, b"\0", b"NaN")
FLOATS = (b"\0" * 8, b"\xff" * 8, b"\0\0\0\0\0\0\xf0\x7f", b"\0\0\0\0\0\0\x10\x80")
DEPTH_MAX = 6
UNCHANGED = 0.06
"""Of the messages; they bring what they are meant to change, and others find it changed."""


class Field(NamedTuple):
    """A field as it is sent: its number, its wire type, and the bytes after its tag."""

    number: int
    kind: int
    content: bytes
    """Of kind 2 without the length."""


def varint(value: int) -> bytes:
    """Return a number as protobuf sends it; also what no 64 bits hold."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def fields_of(message: bytes) -> list[Field] | None:
    """Return the fields of a message, or None of what is none."""
    found, at = [], 0
    while at < len(message):
        tag, at = _number(message, at)
        begin = at
        match tag & 7:
            case 0:
                _, at = _number(message, at)
            case 1 | 5 as kind:
                at += 8 if kind == 1 else 4
            case 2:
                size, begin = _number(message, at)
                at = begin + size
            case _:
                return None
        if not tag >> 3 or at > len(message) or at < begin:
            return None
        found.append(Field(tag >> 3, tag & 7, message[begin:at]))
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(message) and shift < 70:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 0x80:
            return value, at
    return value, len(message) + 1


def serialised(fields: Sequence[Field], lies: dict[int, int] | None = None) -> bytes:
    """Return fields as a message; `lies` are lengths, by place, that are not those of the bytes."""
    parts = []
    for place, (number, kind, content) in enumerate(fields):
        parts.append(varint(number << 3 | kind))
        if kind == 2:
            parts.append(varint((lies or {}).get(place, len(content))))
        parts.append(content)
    return b"".join(parts)


class Mutator:
    """Makes mutations of messages. `others` are messages, of any methods, to take pieces of."""

    def __init__(self, rng: np.random.Generator, others: Sequence[bytes]) -> None:
        self._rng = rng
        self._others = [found for found in map(fields_of, others) if found]

    def _one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def message(self, seed: bytes) -> bytes:
        """Return a message like `seed`; now and then `seed` itself."""
        if self._chance(UNCHANGED):
            return seed
        for _ in range(int(self._rng.integers(1, 4))):
            seed = self._mutated(seed, DEPTH_MAX)
        return seed

    def stream(self, seed: bytes) -> list[bytes]:
        """Return a message like `seed` as the Chunks of a stream, of which some lie."""
        message = self.message(seed) if self._chance(0.6) else seed
        size = int(self._one_of([1 << 20, 1 << 20, 100, 37]))
        cut = [message[at : at + size] for at in range(0, len(message), size)] or [b""]
        chunks = [pb.Chunk(piece=piece) for piece in cut[:50]]
        chunks[0].total_bytes = len(message)
        sent = [chunk.SerializeToString() for chunk in chunks]
        return self._chunks(sent) if self._chance(0.6) else sent

    def messages(self, seeds: Sequence[bytes]) -> list[bytes]:
        """Return a stream of messages like `seeds`."""
        return self._chunks([self.message(seed) for seed in seeds])

    # Streams

    def _chunks(self, chunks: list[bytes]) -> list[bytes]:
        place = int(self._rng.integers(len(chunks)))
        match int(self._rng.integers(9)):
            case 0:
                return []
            case 1:
                return chunks[:place]
            case 2:
                return chunks[:place] + chunks[place + 1 :]
            case 3:
                return [*chunks[: place + 1], *chunks[place:]]
            case 4:
                return [*chunks, self._noise(20)]
            case 5:
                return [chunks[place], *chunks[:place], *chunks[place + 1 :]]
            case 6:
                return [*chunks[:place], b"", *chunks[place:]]
            case 7:
                lie = pb.Chunk(total_bytes=self._one_of(EXTREMES)).SerializeToString()
                return [*chunks[:place], chunks[place] + lie, *chunks[place + 1 :]]
            case _:
                changed = self._mutated(chunks[place], 1)
                return [*chunks[:place], changed, *chunks[place + 1 :]]

    # One message

    def _mutated(self, message: bytes, depth: int) -> bytes:
        fields = fields_of(message)
        if not fields or depth == 0 or self._chance(0.15):
            return self._bytes(message)
        place = int(self._rng.integers(len(fields)))
        field = fields[place]
        if field.kind == 2 and field.content and self._chance(0.7):
            inner = self._mutated(field.content, depth - 1)
            return serialised(
                [*fields[:place], field._replace(content=inner), *fields[place + 1 :]]
            )
        return self._fields(fields, place)

    def _noise(self, count: int) -> bytes:
        return self._rng.integers(0, 256, int(self._rng.integers(1, count)), np.uint8).tobytes()

    def _bytes(self, message: bytes) -> bytes:
        changed = bytearray(message or self._noise(8))
        at = int(self._rng.integers(len(changed)))
        end = at + int(self._rng.integers(1, 9))
        match int(self._rng.integers(6)):
            case 0 | 1:
                for place in self._rng.integers(0, len(changed), int(self._rng.integers(1, 4))):
                    changed[place] ^= 1 << int(self._rng.integers(8))
            case 2:
                del changed[at:]
            case 3:
                del changed[at:end]
            case 4:
                changed[at:at] = changed[at:end]
            case _:
                changed[at:end] = self._noise(16)
        return bytes(changed)

    def _fields(self, fields: list[Field], place: int) -> bytes:
        before, field, after = fields[:place], fields[place], fields[place + 1 :]
        change: Callable[[], bytes] = self._one_of(
            [
                lambda: serialised([*before, *after]),
                lambda: serialised([*fields, field]),
                lambda: serialised([*after, field, *before]),
                lambda: serialised([*before, self._renamed(field), *after]),
                lambda: serialised([*before, *self._spliced(), *fields[place:]]),
                lambda: serialised(fields, {place: self._length(field)}),
                *[lambda: serialised([*before, self._extreme(field), *after])] * 4,
            ]
        )
        return change()

    def _renamed(self, field: Field) -> Field:
        """Return a field of another number, or whose bytes are said to be of another type."""
        if self._chance(0.5):
            return field._replace(number=int(self._one_of([1, 2, 3, 4, 5, 15, 16, 2**29 - 1])))
        return field._replace(kind=int(self._rng.integers(8)))

    def _spliced(self) -> list[Field]:
        """Return fields of another message, of any depth."""
        fields = self._one_of(self._others)
        for _ in range(int(self._rng.integers(4))):
            fields = fields_of(self._one_of(fields).content) or fields
        return list(fields[: int(self._rng.integers(1, 4))])

    def _length(self, field: Field) -> int:
        nearly = len(field.content) + int(self._one_of([-1, 1, 7, -7]))
        return max(int(self._one_of([nearly, nearly, *EXTREMES])), 0)

    def _extreme(self, field: Field) -> Field:
        match field.kind:
            case 0:
                value = self._one_of([*EXTREMES, *EXTREMES, 2**64 - 1, 2**64, 2**77])
                return field._replace(content=varint(int(value)))
            case 1:
                return field._replace(content=self._one_of(FLOATS))
            case 2:
                return field._replace(content=self._one_of([*TEXTS, self._noise(40)]))
        return field._replace(content=self._noise(5))

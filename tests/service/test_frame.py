"""Framing by hand is protobuf: what one side writes, the other and any library reads."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embstore.errors import InvalidArgumentError
from embstore_proto import frame
from embstore_proto.received import Assembly, Received, array_of, parse, split
from embstore_proto.v1 import embstore_pb2 as pb

KEYS = arrays.arrays(np.int64, st.integers(0, 50))
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(0, 20), st.integers(1, 9)))


def framed(keys, rows) -> frame.Framed:
    message = frame.Message()
    header = pb.UpdateRequest.Header()
    header.tables.add(table="a", keys=message.add(keys), gradients=message.add(rows))
    return message.framed(header.SerializeToString())


def unframed(received: Received):
    (table,) = parse(pb.UpdateRequest.Header, received.header).tables
    keys = array_of(received, table.keys, np.int64, 1, "keys")
    return keys, array_of(received, table.gradients, np.float32, 2, "gradients")


@pytest.mark.parametrize("size", [1, frame.CHUNK_BYTES - 300, frame.CHUNK_BYTES, 3 << 20])
def test_chunks_are_the_message(size):
    message = framed(np.arange(5), np.ones((1, size // 4 + 1), np.float32))
    chunks = list(message.chunks())
    parsed = [pb.Chunk.FromString(chunk) for chunk in chunks]
    assert b"".join(chunk.piece for chunk in parsed) == message.joined()
    assert [chunk.total_bytes for chunk in parsed] == [message.total_bytes] + [0] * (
        len(chunks) - 1
    )
    assert max(len(chunk.piece) for chunk in parsed) <= frame.CHUNK_BYTES
    assembly = Assembly(1 << 30)
    for chunk in chunks:
        assert not assembly.is_whole
        assembly.add(chunk)
    assert bytes(assembly.whole()) == message.joined()


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([pb.Chunk(piece=b"x")], "total_bytes in the first chunk"),
        ([pb.Chunk(total_bytes=2, piece=b"x"), pb.Chunk(total_bytes=2, piece=b"x")], "a later one"),
        ([pb.Chunk(total_bytes=2)], "found a chunk of 0"),
        ([pb.Chunk(total_bytes=2, piece=b"xxx")], "expected 1 to 2 bytes more"),
        ([pb.Chunk(total_bytes=1, piece=b"x"), pb.Chunk(piece=b"x")], "1 to 0 bytes more"),
        ([pb.Chunk(total_bytes=101, piece=b"x")], "at most 100 bytes"),
        ([pb.Chunk(total_bytes=2, piece=b"x")], "cut off"),
        ([], "cut off"),
        ([b"\x08\x05\x1a\x01x"], None),  # another field
        ([b"\x0a\x01x"], None),  # the total as bytes
        ([b"\x10\x05"], None),  # the piece as a number
        ([b"\x0b\x0c"], None),  # a group
        ([b"\xff" * 20], None),  # a varint without an end
        ([b"\x08\x05\x12\x7fx"], None),  # a length beyond the chunk
        ([b"\x08\x05\x12" + b"\xff" * 9 + b"\x01x"], None),  # a length near 2**64
    ],
)
def test_a_stream_out_of_order_is_refused(chunks, message):
    assembly = Assembly(100)
    with pytest.raises(InvalidArgumentError, match=message):
        for chunk in chunks:
            assembly.add(chunk if isinstance(chunk, bytes) else chunk.SerializeToString())
        assembly.whole()


SIZES = [*range(40), *range(110, 140), 16_370, 16_380, 16_390]
"""Names so long that lengths of header and padding take one, two or three bytes."""


@pytest.mark.parametrize("room", [0, 1, 100, 126, 127, 128, 129, 300, 16_500])
def test_a_blank_message_is_what_was_written_into_it(room):
    for size in SIZES:
        blank = frame.Blank(room, [(3, 5), (0, 4), (2, 7)])
        rows = [np.random.default_rng(size).random(a.shape, np.float32) for a in blank.arrays]
        for array, row in zip(blank.arrays, rows, strict=True):
            array[:] = row
        header = pb.RowsReply.Header()
        for place in blank.places:
            header.tables.add(table="x" * size, rows=place)
        framed = blank.framed(header.SerializeToString())
        message = framed.joined()
        assert len(message) == framed.total_bytes
        pieces = [pb.Chunk.FromString(chunk).piece for chunk in framed.chunks()]
        assert b"".join(pieces) == message
        assert pb.RowsReply.FromString(message).header == header
        received = split(message)
        for place, row in zip(blank.places, rows, strict=True):
            assert (array_of(received, place, np.float32, 2, "rows") == row).all()


def test_a_blank_message_tells_nothing_of_what_the_memory_held(monkeypatch):
    monkeypatch.setattr(frame, "_blank_bytes", lambda size: bytes([0xEE]) * size)
    blank = frame.Blank(50, [(1, 1), (3, 3), (1, 2)])
    for array in blank.arrays:
        array[:] = 0
    assert 0xEE not in blank.framed(b"").joined()
    message = frame.Message()
    header = pb.LookupRequest.Header()
    for count in (1, 3, 2):
        header.tables.add(keys=message.add(np.zeros(count, np.int64)))
    assert 0xEE not in message.joined(header.SerializeToString())


@given(KEYS, ROWS)
def test_joined_at_once_and_in_parts_is_the_same(keys, rows):
    message = frame.Message()
    header = pb.UpdateRequest.Header()
    gradients = message.add(frame.Computed(rows.shape, lambda out: np.copyto(out, rows)))
    header.tables.add(table="a", keys=message.add(keys), gradients=gradients)
    serialised = header.SerializeToString()
    whole = message.joined(serialised)
    assert whole == message.framed(serialised).joined()
    assert len(whole) == message.total_bytes(serialised)
    assert unframed(split(whole))[1].tobytes() == rows.tobytes()


def test_a_reply_may_be_written_and_outlives_its_bytes():
    received = split(frame.writable(framed(np.arange(5), np.ones((2, 3), np.float32)).joined()))
    _, rows = unframed(received)
    del received
    gc.collect()
    rows += 1
    assert (rows == 2).all()

"""Ascending keys as their differences: they come back, and garbage is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.errors import InvalidArgumentError
from embstore_proto import deltas

NUMBERS = st.integers(0, 300) | st.integers(0, 2**63 - 1) | st.sampled_from([2**63 - 1, 127, 128])


def plain(keys: list[int]) -> bytes:
    """Encode as the page of the format says, number by number."""
    encoded, before = bytearray(), 0
    for key in keys:
        left, before = key - before, key
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
    return bytes(encoded)


def decoded(encoded: bytes, count: int) -> list[int]:
    keys: list[int] = deltas.decode(np.frombuffer(encoded, np.uint8), count, "keys").tolist()
    return keys


@given(st.lists(NUMBERS).map(sorted), st.sampled_from([10, 16, 1 << 16]))
def test_keys_come_back(keys, block):
    encoded = deltas.encode(np.array(keys, np.int64))
    assert len(encoded) == len(keys)
    assert encoded.encoded.tobytes() == plain(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "_BLOCK", block)
        assert decoded(plain(keys), len(keys)) == keys


def test_many_keys_take_a_byte_or_two_each():
    keys = np.unique(np.random.default_rng(0).integers(0, 10_000_000, 100_000))
    encoded = deltas.encode(keys)
    assert len(encoded.encoded) < 2 * len(keys)
    assert (deltas.decode(encoded.encoded, len(keys), "keys") == keys).all()


@pytest.mark.parametrize(
    ("encoded", "count", "message"),
    [
        (b"", 1, "expected 1 numbers as deltas, found 0"),
        (b"\x01", 0, "expected 0 numbers as deltas, found 1"),
        (b"\x01\x01", 1, "expected 1 numbers as deltas, found 2"),
        (b"\x80", 0, "found the last one cut off"),
        (b"\x01\x80\x80", 1, "found the last one cut off"),
        (b"\x80" * 9 + b"\x00", 1, "at most 9 bytes as deltas, found one of 10"),
        (b"\x80" * 100_000 + b"\x00", 1, "at most 9 bytes as deltas, found one of 65536"),
        (plain([2**63 - 1]) + b"\x01", 2, r"below 2\*\*63"),
        (plain([2**63 - 1]) * 3, 3, r"below 2\*\*63"),
    ],
)
def test_garbage_is_refused(encoded, count, message):
    with pytest.raises(InvalidArgumentError, match=f"^keys: .*{message}"):
        decoded(encoded, count)


def sums_of(encoded: bytes) -> list[int] | None:
    """Decode number by number; None: it is garbage."""
    total, number, shift, found = 0, 0, 0, []
    for byte in encoded:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            return None
        if byte < 0x80:
            total += number
            found.append(total)
            number = shift = 0
    return None if shift or total >= 2**63 else found


SOME_BYTES = st.lists(
    st.sampled_from([b"\xff" * 7, b"\xff" * 8 + b"\x7f", b"\x80", b"\x00"]) | st.binary(max_size=9)
)


@given(SOME_BYTES.map(b"".join), st.sampled_from([10, 16, 1 << 16]))
def test_any_bytes_are_keys_or_refused(encoded, block):
    expected = sums_of(encoded)
    count = sum(byte < 0x80 for byte in encoded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "_BLOCK", block)
        if expected is None:
            with pytest.raises(InvalidArgumentError):
                decoded(encoded, count)
        else:
            assert decoded(encoded, count) == expected

"""Two bytes for a float32: every rounding is that of a reference which counts in exact numbers."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore_proto import narrow

FORMATS = {"float16": (5, 10), "bfloat16": (8, 7)}
"""Bits of exponent and of fraction."""
EDGES = [
    *(0x0000_0000, 0x8000_0000, 0x0000_0001, 0x8000_0001, 0x007F_FFFF, 0x0080_0000, 0x0000_8000),
    *(0x0000_8001, 0x0001_8000, 0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x3F80_7FFF, 0x7F7F_7FFF),
    *(0x7F7F_8000, 0x7F7F_FFFF, 0xFF7F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFC0_0000),
    *(0x7F80_0001, 0xFF80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x477F_E000, 0x477F_EFFF, 0x477F_F000),
    *(0x3300_0000, 0x3300_0001, 0x3380_0000, 0x33C0_0000, 0x387F_C000, 0x387F_E000, 0x3880_0000),
]


def reference(bits: int, dtype: str) -> int:
    """Return the bits of the nearest value, ties to even, of a float32 that is no NaN."""
    exponent_bits, fraction_bits = FORMATS[dtype]
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    sign = bits >> 31 << (exponent_bits + fraction_bits)
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    if value in (float("inf"), float("-inf")):
        return sign | infinity
    exact, bias = abs(Fraction(value)), (1 << exponent_bits - 1) - 1
    exponent = 1 - bias  # of subnormals, and of the smallest normals
    while exact >= Fraction(2) ** (exponent + 1):
        exponent += 1
    steps = round(exact / Fraction(2) ** (exponent - fraction_bits))  # Python: ties to even
    # A normal's steps have the hidden bit, which counts the exponent up by one.
    return sign | min(((exponent + bias - 1) << fraction_bits) + steps, infinity)


def floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > 0x7F800000


@pytest.mark.parametrize("dtype", FORMATS)
@given(st.lists(st.sampled_from(EDGES) | st.integers(0, 2**32 - 1), max_size=30))
def test_rounding_is_to_nearest_and_ties_to_even(dtype: str, bits: list[int]) -> None:
    found = narrow.rounded(floats(bits), dtype).view(np.uint16)
    for one, stored in zip(bits, map(int, found), strict=True):
        if is_nan(one):
            exponent_bits, fraction_bits = FORMATS[dtype]
            infinity = ((1 << exponent_bits) - 1) << fraction_bits
            assert stored & 0x7FFF > infinity  # a NaN
            assert stored >> 15 == one >> 31
        else:
            assert stored == reference(one, dtype), hex(one)


@given(st.lists(st.sampled_from(EDGES) | st.integers(0, 2**32 - 1), max_size=30))
def test_float16_is_that_of_numpy(bits: list[int]) -> None:
    values = floats(bits)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16)
    assert narrow.rounded(values, "float16").tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_value_of_two_bytes_comes_back(dtype: str) -> None:
    stored = np.arange(1 << 16, dtype=np.uint16).view(narrow.STORED[dtype])
    wide = narrow.widened(stored)
    assert wide.dtype == np.float32
    back = narrow.rounded(wide, dtype)
    usual = ~np.isnan(wide)
    assert back[usual].tobytes() == stored[usual].tobytes()
    assert np.isnan(narrow.widened(back[~usual])).all()
    assert narrow.LARGEST[dtype] == wide[np.isfinite(wide)].max()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1), (257, 129), (2, 70_000)])
def test_arrays_of_any_shape_are_rounded_where_they_belong(dtype: str, shape: tuple[int, int]):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    out = np.full(shape, 7, narrow.STORED[dtype])
    assert narrow.rounded(values, dtype, out) is out
    assert out.tobytes() == narrow.rounded(values, dtype).tobytes()
    if values.size:
        place = shape[0] - 1, shape[1] - 1
        expected = reference(int(values.view(np.uint32)[place]), dtype)
        assert int(out.view(np.uint16)[place]) == expected


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_lost_to_infinity_is_found_and_what_was_infinite_is_not(dtype: str) -> None:
    largest = np.float32(narrow.LARGEST[dtype])
    kept = floats([0x7F800000, 0xFF800000, 0x7FC00000]).tolist()
    values = np.array([[1.0, largest], [-largest, 0.0]], np.float32)
    assert narrow.first_overflow(values, narrow.rounded(values, dtype)) is None
    values = np.array(kept, np.float32)
    assert narrow.first_overflow(values, narrow.rounded(values, dtype)) is None
    lost = np.float32(65520.0) if dtype == "float16" else np.finfo(np.float32).max
    values = np.array([*kept, -lost, lost], np.float32)
    assert narrow.first_overflow(values, narrow.rounded(values, dtype)) == -lost

"""hash_ids: XXH3-64 of ids in every form in which they come, by the library that has it from C."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from embstore import hash_ids
from embstore.arrays import SPARSE_ROWS
from embstore.config import default_seed
from embstore.errors import InvalidArgumentError
from tests.style.sources import run_python

WRAPPED = 2**64
RESERVED = WRAPPED - 1
ROWS = 1009
WORDS = [
    "68fd1e64",
    "Toy Story (1995)",
    "ü",
    "日本語テキスト",
    "",
    "5",
    "a",
    "user_00000001",
    "x" * 300,
]
NUMBERS = [0, 5, -1, 2**40 + 5, 2**53 - 1, -(2**63), 2**63 - 1]
FEATURES = [None, "user", "ad/Ünïcode"]


def hash_of(value: bytes | int, feature: str | None = None) -> int:
    """Return the hash of one id as the contract has it, as int64."""
    if isinstance(value, int):
        value = (value % WRAPPED).to_bytes(8, "little")
    found = xxh3_64_intdigest(value, 0 if feature is None else default_seed(feature))
    found = 0 if found == RESERVED else found
    return found - WRAPPED if found >= WRAPPED // 2 else found


@pytest.mark.parametrize("feature", FEATURES)
def test_text_in_every_form_is_its_utf8(feature):
    expected = [hash_of(word.encode(), feature) for word in WORDS]
    encoded = [word.encode() for word in WORDS]
    for array in (
        WORDS,
        tuple(WORDS),
        encoded,
        np.array(WORDS),
        np.array(WORDS, object),
        np.array(WORDS, np.dtypes.StringDType()),
        np.array(encoded),
        np.array(WORDS)[::-1][::-1],
        pa.array(WORDS),
        pa.array(WORDS, pa.large_string()),
        pa.array(WORDS, pa.string_view()),
        pa.array(encoded),
        pa.array(WORDS).dictionary_encode(),
        pa.array(["away", *WORDS])[1:],
        pa.chunked_array([WORDS[:2], [], WORDS[2:]]),
        pa.chunked_array([pa.array(WORDS[:3]), pa.array(WORDS[3:])]).dictionary_encode(),
    ):
        found = hash_ids(array, feature=feature)
        assert found.dtype == np.int64
        assert found.tolist() == expected


@pytest.mark.parametrize("feature", FEATURES)
def test_an_integer_of_every_type_is_its_eight_bytes(feature):
    expected = [hash_of(number, feature) for number in NUMBERS]
    for array in (
        NUMBERS,
        np.array(NUMBERS),
        np.array(NUMBERS, object),
        np.array(NUMBERS).view(np.uint64),
        np.array(NUMBERS, ">i8"),
        np.repeat(NUMBERS, 2)[::2],
        [np.int64(number) for number in NUMBERS],
        pa.array(NUMBERS),
        pa.array(NUMBERS).dictionary_encode(),
        pa.chunked_array([NUMBERS[:3], NUMBERS[3:]]),
    ):
        assert hash_ids(array, feature=feature).tolist() == expected
    small = [0, 5, 100]
    for kind in ("i1", "u1", "i4", "u8", "f2", "f4", "f8"):
        expected = [hash_of(number, feature) for number in small]
        assert hash_ids(np.array(small, kind), feature=feature).tolist() == expected
        assert hash_ids(pa.array(np.array(small, kind)), feature=feature).tolist() == expected


def test_a_list_keeps_what_each_of_its_ids_is():
    mixed = [5, "5", b"5", 5.0, np.uint64(5), -1, 2**64 - 1, 2**63, None, float("nan"), "", b"a\0"]
    expected: list[bytes | int] = [5, b"5", b"5", 5, 5, -1, -1, 2**63, b"", b"", b"", b"a\0"]
    assert hash_ids(mixed).tolist() == [hash_of(one) for one in expected]
    assert hash_ids([5]) != hash_ids(["5"])
    assert hash_ids([2**64 - 1, 0]).tolist() == [hash_of(-1), hash_of(0)]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_missing_id_is_empty_text(feature):
    missing = hash_of(b"", feature)
    for array, other in (
        (pa.array([None, 7]), 7),
        (pa.array([None, 7], pa.uint64()), 7),
        (pa.array([None, 7.0]), 7),
        (pa.array([np.nan, 7.0]), 7),
        (pa.array([None, "7"]), b"7"),
        (pa.array(["out of sight", "7"], mask=np.array([True, False])), b"7"),
        (pa.array([None, "7"]).dictionary_encode(), b"7"),
        (pa.DictionaryArray.from_arrays([0, 1], pa.array([None, "7"])), b"7"),
        (np.array([np.nan, 7.0]), 7),
        (np.ma.masked_array([3, 7], [True, False]), 7),
        (["", "7"], b"7"),
    ):
        assert hash_ids(array, feature=feature).tolist() == [missing, hash_of(other, feature)]
    assert hash_ids(pa.nulls(2), feature=feature).tolist() == [missing] * 2


def test_series_of_pandas():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    seven = [hash_of(b""), hash_of(7)]
    assert hash_ids(pandas.Series([None, 7])).tolist() == seven
    assert hash_ids(pandas.Series([None, 7], dtype="Int64")).tolist() == seven
    assert hash_ids(pandas.Series([pandas.NA, 7], dtype=object)).tolist() == seven
    for kind in (None, object, "category", "string"):
        series = pandas.Series(["a", None, "b"], dtype=kind)
        assert hash_ids(series).tolist() == [hash_of(b"a"), hash_of(b""), hash_of(b"b")]
    mixed = pandas.Series([5, "5", 2**64 - 1], dtype=object)
    assert hash_ids(mixed).tolist() == [hash_of(5), hash_of(b"5"), hash_of(-1)]


def test_series_of_polars():
    polars = pytest.importorskip("polars", reason="needs polars")
    series = polars.Series(["a", None, "日本語"])
    assert hash_ids(series).tolist() == [hash_of(b"a"), hash_of(b""), hash_of("日本語".encode())]


@given(st.lists(st.binary(max_size=300)), st.sampled_from(FEATURES))
@example([bytes(n) for n in range(260)], "user")
def test_bytes_of_any_length(values, feature):
    expected = [hash_of(value, feature) for value in values]
    assert hash_ids(values, feature=feature).tolist() == expected
    assert hash_ids(pa.array(values, pa.binary()), feature=feature).tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**64 - 1)), st.sampled_from(FEATURES))
def test_integers_of_64_bits(values, feature):
    expected = [hash_of(value, feature) for value in values]
    assert hash_ids(values, feature=feature).tolist() == expected
    words = np.array([value % WRAPPED for value in values], np.uint64)
    assert hash_ids(words, feature=feature).tolist() == expected


def test_many_ids_are_hashed_as_each():
    numbers = np.arange(100_000) * 977
    words = [f"{number:x}" for number in numbers]
    assert hash_ids(numbers).tolist() == [hash_of(number) for number in numbers.tolist()]
    assert hash_ids(words).tolist() == [hash_of(word.encode()) for word in words]


def test_shapes_are_kept():
    assert hash_ids([["a", "b"], ["c", "a"]]).tolist() == [
        [hash_of(b"a"), hash_of(b"b")],
        [hash_of(b"c"), hash_of(b"a")],
    ]
    for shape in ((0,), (3, 0), (2, 3), ()):
        assert hash_ids(np.zeros(shape, np.int32)).shape == shape
        assert hash_ids(np.zeros(shape, "U3")).shape == shape
    assert hash_ids([]).shape == (0,)
    assert hash_ids(pa.chunked_array([], pa.string())).shape == (0,)


# The integer whose hash would be the reserved one, found by going XXH3's steps of 8 bytes back.

MIX = 0x9FB21C651E98DF25
FLIP = 0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE


def integer_of(wanted: int) -> int:
    """Return the integer whose XXH3-64 with seed 0 is `wanted`."""
    back = pow(MIX, -1, WRAPPED)
    h = _unshifted(wanted, lambda x: x >> 28)
    h = _unshifted(h * back % WRAPPED, lambda x: (x >> 35) + 8)
    h = h * back % WRAPPED
    # x ^ rotl(x, 49) ^ rotl(x, 24) is a linear map of period 64: its 63rd power is the way back.
    for _ in range(63):
        h ^= _rotated(h, 49) ^ _rotated(h, 24)
    return _rotated(h ^ FLIP, 32)


def _unshifted(value: int, of: Any) -> int:
    """Return the x with x ^ of(x) == value, where of(x) looks at higher bits alone."""
    found = value
    for _ in range(3):
        found = value ^ of(found)
    return found


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) % WRAPPED


def test_no_id_has_the_hash_that_stands_for_none():
    number = integer_of(RESERVED)
    assert xxh3_64_intdigest(number.to_bytes(8, "little")) == RESERVED
    assert hash_ids([number]).tolist() == hash_ids(np.array([number], np.uint64)).tolist() == [0]
    assert hash_ids([number], rows=ROWS).tolist() == [0]


def test_rows_take_the_unsigned_hash_modulo():
    hashes = [hash_of(word.encode(), "user") % WRAPPED for word in WORDS]
    for rows in (1, 2, ROWS, 2**40, np.int64(7), SPARSE_ROWS):
        keys = hash_ids(WORDS, feature="user", rows=rows)
        assert keys.dtype == np.int64
        assert keys.view(np.uint64).tolist() == [one % int(rows) for one in hashes]
    assert hash_ids(WORDS).tolist() == hash_ids(WORDS, rows=SPARSE_ROWS).tolist()


def test_a_feature_has_hashes_of_its_own():
    found = [hash_ids(WORDS, feature=name).tolist() for name in FEATURES]
    assert all(not {*a} & {*b} for a, b in itertools.combinations(found, 2))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.5], r"ids of float64 to be whole numbers below 2\*\*53, found 1.5"),
        (np.array([2.0**53]), r"below 2\*\*53, found 9007199254740992"),
        (np.array([2.0**24], np.float32), r"ids of float32 .* below 2\*\*24"),
        (pa.array([0.5]), "whole numbers"),
        ([np.inf], "found inf"),
        ([2**64], f"{2**64}"),
        ([-(2**63) - 1], f"{-(2**63) - 1}"),
        ([True], "found True of type bool"),
        (np.array([True]), "found bool"),
        (["\ud800"], "surrogates"),
        ([1j], "found 1j of type complex"),
        ({"a"}, "found {'a'} of type set"),
        (np.array(["2026-01-01"], "M8[D]"), "found datetime64"),
        (pa.array([[1]]), "found list<"),
        ([[1], [2, 3]], "found .1. of type list"),
    ],
)
def test_what_is_no_id(values, said):
    with pytest.raises(InvalidArgumentError, match=said):
        hash_ids(values)


@pytest.mark.parametrize("rows", [0, -1, 2**40 + 1, 2**64, 1.0, True])
def test_rows_that_no_table_has(rows):
    with pytest.raises(InvalidArgumentError, match="expected rows from 1 to 1099511627776, found"):
        hash_ids([1], rows=rows)


def test_a_feature_is_a_name():
    with pytest.raises(InvalidArgumentError, match="expected feature to be a name, found 5"):
        hash_ids([1], feature=5)


def test_hashing_loads_no_library_of_others():
    code = """if True:
        import sys
        from embstore import hash_ids
        hash_ids(["a", 5, None]), hash_ids(["x" * 16]), hash_ids([1, 2])
        print(*sorted({name.partition(".")[0] for name in sys.modules} & {
            "pyarrow", "xxhash", "pandas", "numba", "cupy", "torch"}))
    """
    assert run_python(code) == ""

"""Ids and rows of other programs: what comes of an id does not depend on its column's type."""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from embstore.errors import InvalidArgumentError
from embstore_client.files.values import hash_ids, ids_of, is_ids
from embstore_tools.profiling.readers import Chunk, open_files

ROWS = 1009


def of_text(text: str) -> int:
    """Return a text's row as the documentation has it."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") % ROWS


def hashed(array: Any) -> list[int]:
    assert is_ids(array.type, hashed=True)
    ids, offsets = ids_of(array, ROWS, "PLACE")
    assert ids.dtype == np.int64 and offsets is None
    return ids.tolist()


NUMBERS = [0, 7, 2**40 + 5, 2**53 - 1, -1, -ROWS - 3]


def test_an_integer_is_one_id_in_every_type():
    expected = [number % ROWS for number in NUMBERS]
    words = [str(number) for number in NUMBERS]
    for array in (
        pa.array(NUMBERS, pa.int64()),
        pa.array(NUMBERS, pa.float64()),
        pa.array(words),
        pa.array([f"{word}.0" for word in words]),
        pa.array(words, pa.large_string()),
        pa.array([word.encode() for word in words]),
        pa.array(words).dictionary_encode(),
        pa.array(NUMBERS).dictionary_encode(),
    ):
        assert hashed(array) == expected
    small = [0, 7, 100]
    for kind in ("i1", "u1", "i4", "u8", "f2", "f4"):
        assert hashed(pa.array(np.array(small, kind))) == small
    large = [2**63, 2**64 - 1]
    assert hashed(pa.array(large, pa.uint64())) == [number % ROWS for number in large]
    assert hashed(pa.array([str(number) for number in large])) == [n % ROWS for n in large]


def test_text_is_hashed_as_it_is_documented():
    words = ["68fd1e64", "Toy Story (1995)", "ü", "1e5", "007", "-0", "1" * 21, "1.5", "nan"]
    expected = [of_text(word) for word in words]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        assert hashed(pa.array(words, kind)) == expected


def test_a_missing_id_is_row_0():
    for array in (
        pa.array([None, 7]),
        pa.array([None, 7], pa.uint64()),
        pa.array([None, 7.0]),
        pa.array([np.nan, 7.0]),
        pa.array([None, "7"]),
        pa.array(["", "7"]),
        pa.array([None, "7"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays([0, 1], pa.array([None, "7"])),
    ):
        assert hashed(array) == [0, 7]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.string(), 2)]
)
def test_lists_are_hashed_and_missing_ones_are_empty(kind):
    is_fixed = pa.types.is_fixed_size_list(kind)
    lists = [["a", "7"], None, [None, "b"]] if is_fixed else [["a"], [], None, ["7", None, "b"]]
    ids, offsets = ids_of(pa.array(lists, kind), ROWS, "PLACE")
    flat = [word for words in lists for word in words or ()]
    assert ids.tolist() == [0 if w is None else 7 if w == "7" else of_text(w) for w in flat]
    assert offsets is not None
    assert np.diff(offsets).tolist() == [len(words or ()) for words in lists]


@pytest.mark.parametrize("value", [1.5, 2.0**53, -(2.0**53), np.inf])
def test_a_double_that_is_no_id(value):
    with pytest.raises(InvalidArgumentError, match="PLACE: expected whole numbers below"):
        ids_of(pa.array([3.0, value]), ROWS, "PLACE")


def test_hash_ids_gives_what_profiles_have():
    mixed = [None, np.nan, 7, 7.0, "7", b"7", -1, "-1", 2**64 - 1, "x", b"x", ""]
    expected = [0, 0, 7, 7, 7, 7, ROWS - 1, ROWS - 1, (2**64 - 1) % ROWS, *[of_text("x")] * 2, 0]
    assert hash_ids(np.array(mixed, object), ROWS).tolist() == expected
    for array in (NUMBERS, np.array(NUMBERS, np.float64), list(map(str, NUMBERS))):
        assert hash_ids(array, ROWS).tolist() == [number % ROWS for number in NUMBERS]
    found = hash_ids([["a", "b"], ["c", "a"]], ROWS)
    assert found.dtype == np.int64 and found.tolist() == [
        [of_text("a"), of_text("b")],
        [of_text("c"), of_text("a")],
    ]
    for wrong in ([1.5], np.array([1.5, "x"], object), [2.0**53]):
        with pytest.raises(InvalidArgumentError, match="ids: expected whole numbers below"):
            hash_ids(wrong, ROWS)


# Files of samples

IDS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text("ab7é -.", max_size=4))


@given(st.lists(IDS, min_size=1, max_size=30))
def test_text_and_parquet_of_the_same_ids(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("samples")
    texts = pa.table({"a": pa.array([None if i is None else str(i) for i in ids])})
    texts = texts.append_column("b", pa.array(["x"] * len(ids)))
    parquet.write_table(texts, folder / "f.parquet")
    csv.write_csv(texts, folder / "f.csv")
    found = [rows_in(folder / name) for name in ("f.parquet", "f.csv")]
    assert found[0] == found[1] == hashed(texts["a"].combine_chunks())


def rows_in(path: Path) -> list[int]:
    [file] = open_files([path], ["a"], {"a": ROWS})
    chunks: list[Chunk] = list(file.chunks())
    return [row for chunk in chunks for row in chunk.columns[0].ids.tolist()]

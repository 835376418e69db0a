"""Ids of other programs: those that are hashed are what hash_ids makes of them."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from embstore import hash_ids
from embstore.errors import InvalidArgumentError
from embstore_client.files.decimals import NotDecimalError, decimals
from embstore_client.files.values import ids_of, is_ids
from embstore_tools.profiling.readers import Chunk, open_files

ROWS = 1009
hashed = partial(hash_ids, feature="ads", rows=ROWS)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([7, None]),
        pa.array([7.0, None]),
        pa.array(["7", None, ""]),
        pa.array(["7", "ü"], pa.large_string()),
        pa.array([b"7"]),
        pa.array(["7", "ü"]).dictionary_encode(),
        pa.nulls(2),
    ],
    ids=lambda values: str(values.type).partition("<")[0],
)
def test_ids_of_every_type_are_hashed(values):
    assert is_ids(values.type, hashed=True)
    ids, offsets = ids_of(values, hashed, "PLACE")
    assert offsets is None
    assert ids.tolist() == hash_ids(values, feature="ads", rows=ROWS).tolist()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.string(), 2)]
)
def test_lists_are_hashed_and_missing_ones_are_empty(kind):
    is_fixed = pa.types.is_fixed_size_list(kind)
    lists = [["a", "7"], None, [None, "b"]] if is_fixed else [["a"], [], None, ["7", None, "b"]]
    ids, offsets = ids_of(pa.array(lists, kind), hashed, "PLACE")
    assert ids.tolist() == hashed([word for words in lists for word in words or ()]).tolist()
    assert offsets is not None
    assert np.diff(offsets).tolist() == [len(words or ()) for words in lists]


def test_what_is_no_id_is_named_with_its_place():
    with pytest.raises(InvalidArgumentError, match="PLACE: expected ids of float64 to be whole"):
        ids_of(pa.array([3.0, 1.5]), hashed, "PLACE")


# Keys as text


def of_text(text: str, are_sparse: bool) -> int | None:
    """Return the key that a text is; None: it is none."""
    found = decimals(pa.array([text]), are_sparse=are_sparse)
    return found[0].as_py()


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 30), st.sampled_from(["", " ", "\t "]))
def test_decimal_digits_are_keys(key, zeros, blank):
    text = f"{blank}{'-' if key < 0 else ''}{'0' * zeros}{abs(key)}{blank}"
    assert of_text(text, are_sparse=True) == (key if key < 2**63 else key - 2**64)
    if key < 2**63:
        assert of_text(text, are_sparse=False) == key


@pytest.mark.parametrize(
    "text",
    [
        *(
            "0x10",
            "0X1f",
            "-0x1",
            "1_000",
            "+5",
            "\u0663",
            "\uff11",
            "1\u0661",
            "5.0",
            "1e3",
            "0b1",
        ),
        *("", " ", "-", "--1", "1-", "1 2", "5\n", "\u00a05", "18446744073709551616", "9" * 5000),
        *("-9223372036854775809", "nan", "True"),
    ],
)
@pytest.mark.parametrize("are_sparse", [False, True])
def test_other_spellings_are_no_keys(text, are_sparse):
    with pytest.raises(NotDecimalError) as caught:
        decimals(pa.array(["7", None, " 8", text, "x"]), are_sparse=are_sparse)
    assert (caught.value.position, caught.value.found) == (3, text)


def test_the_bounds_of_dense_keys():
    with pytest.raises(NotDecimalError):
        of_text(str(2**63), are_sparse=False)
    assert decimals(pa.array(["1", None]), are_sparse=False).to_pylist() == [1, None]


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
    assert found[0] == found[1] == hashed(texts["a"]).tolist()


def rows_in(path: Path) -> list[int]:
    [file] = open_files([path], ["a"], {"a": hashed})
    chunks: list[Chunk] = list(file.chunks())
    return [row for chunk in chunks for row in chunk.columns[0].ids.tolist()]

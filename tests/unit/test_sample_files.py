"""Files of samples as they are shipped: packed, text with a header, columns of hashed ids."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from embstore import hash_ids
from embstore.errors import InvalidArgumentError
from embstore_tools.demo import criteo, synthetic
from embstore_tools.demo.columns import scaled_rows
from embstore_tools.profiling.readers import Chunk, open_files

PACKED = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}


def packed(path: Path, ending: str) -> Path:
    """Return a packed copy of a file, whose name says nothing of that."""
    copy = path.with_name(f"{path.stem}-{ending}")
    with pa.output_stream(str(copy), compression=PACKED[ending]) as stream:
        stream.write(path.read_bytes())
    return copy


def chunks_of(path: Path, *columns: str, **hashed: int) -> list[Chunk]:
    """Return a file's chunks; `hashed` has the rows of columns that are."""
    hashing = {name: partial(hash_ids, feature=name, rows=rows) for name, rows in hashed.items()}
    [file] = open_files([path], columns or None, hashing)
    return list(file.chunks())


def ids(chunks: list[Chunk]) -> list[list[int]]:
    """Return the ids of each column of all chunks."""
    columns = zip(*(chunk.columns for chunk in chunks), strict=True)
    return [np.concatenate([part.ids for part in column]).tolist() for column in columns]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 3,000 lines of Criteo TSV."""
    path = tmp_path_factory.mktemp("day") / "day_0.tsv"
    synthetic.write(path, samples=3000, rows=scaled_rows(0.001))
    return path


@pytest.mark.parametrize("ending", PACKED)
def test_packed_criteo(day, ending):
    found = chunks_of(packed(day, ending))
    assert ids(found) == ids(chunks_of(day))
    assert sum(chunk.file_bytes for chunk in found) == packed(day, ending).stat().st_size
    blocks = criteo.read(packed(day, ending), limit=1500, block=1000)
    assert [len(block) for block in blocks] == [1000, 500]


def test_a_packed_file_of_several_parts(day):
    lines = day.read_bytes().splitlines(keepends=True)
    path = day.with_name("parts.tsv.gz")
    path.write_bytes(b"".join(gzip.compress(b"".join(part)) for part in (lines[:9], lines[9:])))
    assert ids(chunks_of(path)) == ids(chunks_of(day))


def test_a_packed_file_that_was_cut_off(day):
    path = packed(day, "gz")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidArgumentError, match=f"found {path}: Truncated compressed stream"):
        chunks_of(path)


HEADERS = {
    "comma.csv": ("user,item,rating\n", ","),
    "tab.inter": ("user:token\titem:token\trating:float\n", "\t"),
    "index.csv": (",item,rating\n", ","),
}


@pytest.mark.parametrize("ending", [None, *PACKED])
@pytest.mark.parametrize("name", HEADERS)
def test_text_with_a_header(tmp_path, name, ending):
    header, separator = HEADERS[name]
    path, rows = tmp_path / name, [(i % 97, i * i % 1013, i / 2) for i in range(30_000)]
    path.write_text(header + "".join(separator.join(map(str, row)) + "\r\n" for row in rows))
    path = packed(path, ending) if ending else path
    first, second, _ = header.rstrip().split(separator)
    found = chunks_of(path, second, first)
    assert ids(found) == [[row[1] for row in rows], [row[0] for row in rows]]
    assert max(chunk.samples for chunk in found) <= 8192
    assert sum(chunk.file_bytes for chunk in found) == path.stat().st_size
    assert found[1].place.endswith("rows 8192 to 16383")


def test_text_that_is_hashed(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label,C1,C2\n1,68fd1e64,260.0\n0,,\n1,"a, b",-1\n')
    found = ids(chunks_of(path, "C1", "C2", C1=1000, C2=1000))
    texts = ["68fd1e64", "", "a, b"], ["260.0", None, "-1"]
    named = zip(texts, ("C1", "C2"), strict=True)
    assert found == [hash_ids(of, feature=name, rows=1000).tolist() for of, name in named]


def test_criteo_that_is_hashed(day):
    plain, hashed = ids(chunks_of(day, "C3", "4")), ids(chunks_of(day, "C3", "4", C3=1000))
    assert hashed == [hash_ids(plain[0], feature="C3", rows=1000).tolist(), plain[1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "expected at least one row, found none"),
        ("a,b\n1,2\n3\n", "expected a whole text file with a header, found: .*columns, got 1"),
        ("a,b\n1,2\nx,2\n", "column 'a' to be of integers in decimal digits, found 'x' in line 3"),
        ("a,b\n0x10,2\n", "column 'a' to be of integers in decimal digits, found '0x10' in line 2"),
        ("a,b\n1,2\n,2\n", "rows 0 to 1, column 'a': expected an integer .* found 1 missing"),
        ("b,c\n1,2\n", "expected a column 'a', found none; its columns are b, c"),
        ("a,a\n1,2\n", "expected a column 'a', found 2 of that name"),
        ("1,2\n3,4\n", "expected a column from C1 to C26"),
    ],
)
def test_text_that_is_refused(tmp_path, text, said):
    path = tmp_path / "file.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=rf"file\.csv.*{said}"):
        chunks_of(path, "a")


def test_text_needs_its_columns_named(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgumentError, match="--table COLUMN=NAME for a text file with a"):
        chunks_of(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["5", "x", None]),
        pa.array(["5", "x", None]).dictionary_encode(),
        pa.array([5, -3, None]),
        pa.array([5, 2**64 - 1, None], pa.uint64()),
        pa.array([5.0, 8.0, float("nan")]),
        pa.array([["5", "x"], None, []]),
    ],
)
def test_parquet_of_every_kind_is_hashed(tmp_path, column):
    path = tmp_path / "f.parquet"
    parquet.write_table(pa.table({"a": column}), path)
    [found] = ids(chunks_of(path, "a", a=1000))
    values = column.flatten() if pa.types.is_list(column.type) else column
    assert found == hash_ids(values, feature="a", rows=1000).tolist()
    with pytest.raises(InvalidArgumentError, match=r"f\.parquet"):
        chunks_of(path, "a")


def test_written_by_pyarrow_and_read(tmp_path):
    path = tmp_path / "f.csv"
    csv.write_csv(pa.table({"id": [3, 1], "word": ["x", 'a "b"']}), path)
    assert ids(chunks_of(path, "id")) == [[3, 1]]

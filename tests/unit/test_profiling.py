"""Profiles from files: readers, curves, sizes and plots."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

import embstore
from embstore.errors import InvalidArgumentError
from embstore.layout import Layout
from embstore_server.sizing import sizes
from embstore_tools.profiling import plots
from embstore_tools.profiling.readers import Chunk, open_files

Ids = NDArray[np.int64]


LINE = "1\t" + "\t".join(["0"] * 13) + "\t" + "\t".join(f"{n:x}" for n in range(101, 127)) + "\n"


def skewed(samples: int, rows: int, seed: int = 1) -> Ids:
    rng = np.random.default_rng(seed)
    return (rows * rng.random(samples) ** 3).astype(np.int64)


def only(path: Path, *columns: str) -> list[Chunk]:
    [file] = open_files([path], columns or None)
    return list(file.chunks())


def write_parquet(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


# Criteo TSV


@pytest.fixture
def criteo_file(tmp_path: Path) -> Path:
    path = tmp_path / "day.tsv"
    path.write_text(LINE + LINE.replace("\t65\t", "\t\t").replace("\n", "\r\n"))
    return path


def test_criteo_columns_by_name_and_by_number(criteo_file):
    [chunk] = only(criteo_file, "C1", "26", "c2")
    assert [column.ids.tolist() for column in chunk.columns] == [[101, 0], [126, 126], [102, 102]]
    assert chunk.samples == 2
    assert chunk.file_bytes == criteo_file.stat().st_size


def test_criteo_without_columns_has_all(criteo_file):
    [chunk] = only(criteo_file)
    assert [int(column.ids[0]) for column in chunk.columns] == list(range(101, 127))


@pytest.mark.parametrize("name", ["C0", "C27", "0", "27", "C", "x", "C1x", "-1", ""])
def test_criteo_has_no_such_column(criteo_file, name):
    with pytest.raises(InvalidArgumentError, match=r"day\.tsv: expected a column from C1 to C26"):
        open_files([criteo_file], [name])


def test_a_bad_line_is_named_with_its_file(tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text(LINE * 3 + "1\t2\n")
    with pytest.raises(InvalidArgumentError, match=r"bad\.tsv, line 4: expected 40 fields"):
        only(path)


@pytest.mark.parametrize("kind", ["absent", "folder", "empty"])
def test_files_that_cannot_be_read(tmp_path, kind):
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    with pytest.raises(InvalidArgumentError, match=f"expected .*{kind}|{kind}: expected"):
        only(path)


# Parquet


def test_parquet_columns_of_integers(tmp_path):
    path = write_parquet(
        tmp_path / "f",
        a=pa.array([3, 1, 2], pa.int32()),
        b=pa.array([5, 5, 2**63 - 1], pa.uint64()),
        c=["x", "y", "z"],
    )
    [chunk] = only(path, "b", "a")
    assert [column.ids.tolist() for column in chunk.columns] == [[5, 5, 2**63 - 1], [3, 1, 2]]
    assert all(column.ids.dtype == np.int64 for column in chunk.columns)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int16()), pa.list_(pa.int32(), 2)]
)
def test_parquet_columns_of_lists(tmp_path, kind):
    fixed = pa.types.is_fixed_size_list(kind)
    lists = [[1, 2], [3, 4], [5, 6]] if fixed else [[1, 2], [], [3]]
    [chunk] = only(write_parquet(tmp_path / "f", a=pa.array(lists, kind)), "a")
    [column] = chunk.columns
    assert column.offsets is not None
    assert [column.ids[low:high].tolist() for low, high in pairwise(column.offsets)] == lists


def test_parquet_is_read_in_chunks(tmp_path):
    ids = skewed(40_000, 1000)
    path = tmp_path / "f"
    parquet.write_table(pa.table({"a": ids}), path, row_group_size=15_000)
    chunks = only(path, "a")
    assert max(chunk.samples for chunk in chunks) <= 8192
    assert np.array_equal(np.concatenate([chunk.columns[0].ids for chunk in chunks]), ids)
    assert sum(chunk.file_bytes for chunk in chunks) == path.stat().st_size


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1, None]), r"rows 0 to 1, column 'a': expected an integer .* found 1 missing"),
        (pa.array([[1], None]), "found 1 missing"),
        (pa.array([[1, None], [2]]), "found 1 missing"),
        (pa.array([1, 2**63], pa.uint64()), r"below 2\*\*63, found 9223372036854775808"),
        (pa.array([1.0, 2.0]), "column 'a' to be of integers or lists of integers, found double"),
        (pa.array([["x"]]), "found list<.*string>"),
        (pa.array([], pa.int64()), "expected at least one row, found none"),
    ],
)
def test_parquet_columns_that_are_refused(tmp_path, column, said):
    path = write_parquet(tmp_path / "file.parquet", a=column)
    with pytest.raises(InvalidArgumentError, match=rf"file\.parquet.*{said}"):
        only(path, "a")


def test_parquet_with_a_column_twice(tmp_path):
    path = tmp_path / "f"
    parquet.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(InvalidArgumentError, match="found 2 of that name"):
        only(path, "a")


def test_damaged_parquet(tmp_path):
    whole = write_parquet(tmp_path / "whole", a=skewed(50_000, 1 << 40)).read_bytes()
    path = tmp_path / "cut"
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidArgumentError, match="cut: expected a whole Parquet file"):
            only(path, "a")
    path.write_bytes(whole[:1000] + bytes(5000) + whole[6000:])  # the end is whole, a page is not
    with pytest.raises(InvalidArgumentError, match="cut: expected a whole Parquet file"):
        only(path, "a")


# Curves, sizes, plots


def test_sizes_looked_at():
    assert sizes.looked_at(1000).tolist() == [64, 100, 200, 300, 500, 1000]
    assert sizes.looked_at(10**6)[:6].tolist() == [100, 200, 300, 500, 1000, 2000]
    assert sizes.looked_at(3).tolist() == [3]


def test_slots_for_a_target():
    slots, rates = [10, 100, 1000], [0.2, 0.4, 0.8]
    assert sizes.slots_for(0.1, slots, rates) == 10
    assert sizes.slots_for(0.4, slots, rates) == 100
    assert sizes.slots_for(0.6, slots, rates) == 317
    assert sizes.between(0.81, slots, rates) is None
    around = sizes.between(0.6, slots, rates)
    assert around is not None and (around[0], around[-1], len(around)) == (100, 1000, 9)
    assert str(sizes.between(0.1, slots, rates)) == "[10]"


@pytest.mark.parametrize("dim", [4, 16, 100])
def test_cache_bytes_give_the_slots_that_were_asked_for(tmp_path, dim):
    slots = 5000
    cache_bytes = sizes.cache_bytes(Layout(dim, 1, "rowwise_adagrad"), slots)
    with embstore.open(tmp_path / "store", device="cpu", cache_bytes=cache_bytes) as store:
        table = store.create_table(
            "a",
            dim=dim,
            rows=4 * slots,
            optimizer=embstore.RowWiseAdagrad(0.01),
            initializer=embstore.Constant(0.0),
        )
        for start in range(0, 4 * slots, 1000):
            table.lookup(np.arange(start, start + 1000))
        [pool] = store.stats()["cache"]["pools"]
    assert slots * 0.97 <= pool["slots"] <= slots * 1.05


def curves_plot(count: int = 2, *, x_is_share: bool = True) -> plots.Plot:
    x = np.geomspace(1e-4, 1, 50)
    return plots.Plot(
        "hits",
        "share of rows",
        "hit rate",
        [plots.Curve(f"curve {i}", x, x ** (0.1 * (i + 1))) for i in range(count)],
        x_is_share,
    )


def test_text_plot_fits_a_small_terminal_and_names_its_curves(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")  # as it is piped, it is of one size everywhere
    text = plots.text(curves_plot())
    lines = text.splitlines()
    assert len(lines) == plots.TEXT_LINES
    assert max(map(len, lines)) <= plots.TEXT_COLUMNS
    assert "\x1b" not in text
    for word in ("hits", "* curve 0", "o curve 1", "0.01 %", "100 %", "share of rows"):
        assert word in text

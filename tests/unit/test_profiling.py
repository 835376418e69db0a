"""Profiles from files: readers, counting however a stream is cut, sizes and plots."""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyarrow import parquet

import embstore
from embstore.cache.sizes import Layout
from embstore.errors import InvalidArgumentError, StorageError
from embstore.frequency.profile import Profile
from embstore_server.demo import synthetic
from embstore_server.demo.columns import scaled_rows
from embstore_server.profiling import count, plots, sizes
from embstore_server.profiling.count import Counting, SampleCounter, count_files
from embstore_server.profiling.curves import coverage_plot, overall_coverage, table_facts
from embstore_server.profiling.readers import Chunk, Column, SampleFile, open_files

Ids = NDArray[np.int64]
Lists = Sequence[Sequence[int]]

LINE = "1\t" + "\t".join(["0"] * 13) + "\t" + "\t".join(f"{n:x}" for n in range(101, 127)) + "\n"


def ragged(lists: Lists) -> Column:
    offsets = np.cumsum([0, *map(len, lists)])
    return Column(np.array([i for ids in lists for i in ids], np.int64), offsets)


def profiled(
    columns: Sequence[Column], counting: Counting, cuts: Sequence[int] = ()
) -> tuple[SampleCounter, Profile]:
    """Count columns cut into chunks at `cuts`."""
    counter = SampleCounter(counting)
    bounds = [0, *sorted(cuts), len(columns[0])]
    for low, high in pairwise(bounds):
        counter.add(Chunk(tuple(column.part(low, high) for column in columns), "memory"))
    return counter, counter.profile()


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


def test_criteo_columns_by_name_and_by_number(criteo_file: Path) -> None:
    [chunk] = only(criteo_file, "C1", "26", "c2")
    assert [column.ids.tolist() for column in chunk.columns] == [[101, 0], [126, 126], [102, 102]]
    assert chunk.samples == 2
    assert chunk.file_bytes == criteo_file.stat().st_size


def test_criteo_without_columns_has_all(criteo_file: Path) -> None:
    [chunk] = only(criteo_file)
    assert [int(column.ids[0]) for column in chunk.columns] == list(range(101, 127))


@pytest.mark.parametrize("name", ["C0", "C27", "0", "27", "C", "x", "C1x", "-1", ""])
def test_criteo_has_no_such_column(criteo_file: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"day\.tsv: expected a column from C1 to C26"):
        open_files([criteo_file], [name])


def test_a_bad_line_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(LINE * 3 + "1\t2\n")
    with pytest.raises(InvalidArgumentError, match=r"bad\.tsv, line 4: expected 40 fields"):
        only(path)


@pytest.mark.parametrize("kind", ["absent", "folder", "empty"])
def test_files_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    with pytest.raises(InvalidArgumentError, match=f"expected .*{kind}|{kind}: expected"):
        only(path)


def test_every_file_is_opened_before_the_first_is_read(criteo_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="absent"):
        open_files([criteo_file, tmp_path / "absent"], None)


# Parquet


def test_parquet_columns_of_integers(tmp_path: Path) -> None:
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
def test_parquet_columns_of_lists(tmp_path: Path, kind: pa.DataType) -> None:
    fixed = pa.types.is_fixed_size_list(kind)
    lists = [[1, 2], [3, 4], [5, 6]] if fixed else [[1, 2], [], [3]]
    [chunk] = only(write_parquet(tmp_path / "f", a=pa.array(lists, kind)), "a")
    [column] = chunk.columns
    assert column.offsets is not None
    assert [column.ids[low:high].tolist() for low, high in pairwise(column.offsets)] == lists


def test_parquet_is_read_in_chunks(tmp_path: Path) -> None:
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
def test_parquet_columns_that_are_refused(tmp_path: Path, column: pa.Array, said: str) -> None:
    path = write_parquet(tmp_path / "file.parquet", a=column)
    with pytest.raises(InvalidArgumentError, match=rf"file\.parquet.*{said}"):
        only(path, "a")


def test_parquet_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f", a=[1], b=[2])
    with pytest.raises(
        InvalidArgumentError, match=r"column 'c', found none; its columns are a, b$"
    ):
        only(path, "a", "c")
    with pytest.raises(InvalidArgumentError, match=r"expected --table .* its columns are a, b$"):
        only(path)


def test_parquet_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "f"
    parquet.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(InvalidArgumentError, match="found 2 of that name"):
        only(path, "a")


def test_damaged_parquet(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "whole", a=skewed(50_000, 1 << 40)).read_bytes()
    path = tmp_path / "cut"
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidArgumentError, match="cut: expected a whole Parquet file"):
            only(path, "a")
    path.write_bytes(whole[:1000] + bytes(5000) + whole[6000:])  # the end is whole, a page is not
    with pytest.raises(InvalidArgumentError, match="cut: expected a whole Parquet file"):
        only(path, "a")


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "f", a=[1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidArgumentError, match=r'f: .* pip install "embstore\[data\]"'):
        only(path, "a")


# Counting


def test_counts_of_tables_with_several_columns() -> None:
    one, lists, other = skewed(500, 50), [[i % 7] * (i % 4) for i in range(500)], skewed(500, 9, 2)
    counting = Counting(("a", "a", "b"), rows={"b": 9})
    counter, profile = profiled([Column(one), ragged(lists), Column(other)], counting, [100, 101])
    true = Counter(one.tolist()) + Counter(i for ids in lists for i in ids)
    table = profile.tables["a"]
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == true
    assert (table.rows, table.accesses, table.error) == (0, true.total(), 0)
    assert (profile.tables["b"].rows, profile.tables["b"].accesses) == (9, 500)
    assert (counter.samples, counter.counted, profile.rate) == (500, 500, 1.0)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_profile_does_not_depend_on_how_the_stream_is_cut(data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, 300))
    lists = data.draw(
        st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=samples, max_size=samples)
    )
    columns = [Column(skewed(samples, 1000)), ragged(lists)]
    counting = Counting(
        ("a", "b"),
        rate=data.draw(st.sampled_from([1.0, 0.5, 0.05])),
        seed=data.draw(st.integers(-(2**63) + 1, 2**63 - 1)),
        batch=data.draw(st.integers(1, 400)),
        hash_rows={"a": data.draw(st.integers(1, 1000))},
    )
    cuts = data.draw(st.lists(st.integers(0, samples), max_size=6))
    _, whole = profiled(columns, counting)
    _, cut = profiled(columns, counting, cuts)
    assert cut.to_bytes() == whole.to_bytes()
    assert Profile.from_bytes(cut.to_bytes()).to_bytes() == cut.to_bytes()


def test_many_samples_are_kept_alike_however_the_stream_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(count, "SAMPLES_MAX", 100)
    column = Column(np.arange(5000))
    _, whole = profiled([column], Counting(("a",)))
    _, cut = profiled([column], Counting(("a",)), range(7, 5000, 13))
    assert whole.samples is not None and cut.samples is not None
    assert len(whole.samples) == 100
    assert np.array_equal(whole.samples.ids, cut.samples.ids)


def test_a_sample_is_counted_or_not_as_a_whole() -> None:
    ids = np.arange(20_000)
    counting = Counting(("a", "b"), rate=0.05, seed=3)
    counter, profile = profiled([Column(ids), Column(ids)], counting)
    kept = profile.tables["a"].keys
    assert np.array_equal(kept, profile.tables["b"].keys)
    assert counter.counted == len(kept)
    assert abs(len(kept) / 20_000 - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)
    _, again = profiled([Column(ids), Column(ids)], counting)
    _, other = profiled([Column(ids), Column(ids)], Counting(("a", "b"), rate=0.05, seed=4))
    assert np.array_equal(kept, again.tables["a"].keys)
    assert not np.array_equal(kept, other.tables["a"].keys)
    assert profile.trace is not None
    assert profile.trace.access_total == 40_000, "calls are recorded from all samples"


def test_a_higher_rate_counts_more_of_the_same_samples() -> None:
    ids = Column(np.arange(5000))
    counted = [
        set(profiled([ids], Counting(("a",), rate=rate))[1].tables["a"].keys.tolist())
        for rate in (0.1, 0.3, 1.0)
    ]
    assert counted[0] < counted[1] < counted[2] == set(range(5000))


def test_kept_samples_are_whole_and_uniform() -> None:
    ids = np.arange(200_000)
    counting = Counting(("a", "b"), rate=0.01)
    _, profile = profiled([Column(ids), Column(ids + 7)], counting, range(0, 200_000, 8192))
    assert profile.samples is not None
    first, second = profile.samples.ids.reshape(2, -1)
    assert profile.samples.tables == ("a", "b")
    assert (profile.samples.lengths == 1).all()
    assert len(first) == count.SAMPLES_MAX
    assert np.array_equal(first + 7, second)
    assert (np.diff(first) > 0).all(), "in the order of the stream"
    tenths = np.bincount(first // 20_000, minlength=10)
    assert np.abs(tenths - len(first) / 10).max() < 5 * np.sqrt(len(first) / 10)
    counted = np.isin(first, profile.tables["a"].keys).mean()
    assert abs(counted - 0.01) < 0.005, "which are kept says nothing of which are counted"


@pytest.mark.parametrize("seed", [2**63, -(2**63), 10**20])
def test_a_seed_that_no_profile_can_hold_is_refused_at_once(seed: int) -> None:
    """It was found when all files had been counted, and the profile was made."""
    with pytest.raises(InvalidArgumentError, match="seed to be an integer from -9223372036854775"):
        Counting(("a",), seed=seed)
    for good in (2**63 - 1, 1 - 2**63):
        assert profiled([Column(np.arange(3))], Counting(("a",), seed=good))[1].seed == good


@pytest.mark.parametrize("lists", [[[], []], []])
def test_streams_without_an_id(lists: Lists) -> None:
    _, profile = profiled([ragged(lists)], Counting(("a",)))
    assert profile.samples is None
    assert profile.tables["a"].accesses == 0
    assert table_facts(profile.tables["a"])["top_1_percent"] == 0
    assert "0%" in plots.text(coverage_plot(profile, by_table=True))


def test_recorded_calls_are_batches_of_the_stream() -> None:
    a, b = skewed(1000, 40), [[i % 3] * (i % 3) for i in range(1000)]
    columns = [Column(a), ragged(b)]
    _, profile = profiled(columns, Counting(("a", "b"), batch=300), [10, 299, 301, 950])
    trace = profile.trace
    assert trace is not None and trace.rate == 1
    events = zip(
        trace.call.tolist(), trace.table.tolist(), trace.keys.tolist(), trace.counts.tolist(),
        strict=True,
    )  # fmt: skip
    found = {(call, trace.tables[table], key): times for call, table, key, times in events}
    true = Counter((i // 300, "a", int(key)) for i, key in enumerate(a))
    true += Counter((i // 300, "b", key) for i, keys in enumerate(b) for key in keys)
    assert found == true
    assert (trace.calls, trace.unique_total, trace.access_total) == (4, len(true), true.total())


def test_ids_modulo_the_rows_of_a_table() -> None:
    ids = np.array([5, 105, 2**62, 7])
    _, profile = profiled([Column(ids)], Counting(("a",), hash_rows={"a": 100}))
    assert profile.tables["a"].keys.tolist() == sorted({5, 7, 2**62 % 100})
    assert profile.tables["a"].rows == 100


@pytest.mark.parametrize(
    ("ids", "extra", "said"),
    [
        ([3, -2], {}, "table 'a': expected ids >= 0, found -2"),
        ([3, -2], {"hash_rows": {"a": 4}}, "table 'a': expected ids >= 0, found -2"),
        ([3, 2], {"rows": {"a": 3}}, "table 'a': expected ids below 3, found 3"),
        ([1 << 40], {}, "table 'a': expected ids below 1099511627776, found 1099511627776"),
    ],
)
def test_ids_that_are_no_keys(ids: list[int], extra: dict[str, Any], said: str) -> None:
    counter = SampleCounter(Counting(("b", "a"), **extra))
    columns = Column(np.zeros(len(ids), np.int64)), Column(np.array(ids))
    with pytest.raises(InvalidArgumentError, match=f"FILE, rows 0 to 1: {said}"):
        counter.add(Chunk(columns, "FILE, rows 0 to 1"))
    assert counter.samples == 0
    assert all(table.accesses == 0 for table in counter.profile().tables.values())


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"rate": 0.0}, "expected a rate above 0, at most 1, found 0.0"),
        ({"rate": 1.5}, "expected a rate"),
        ({"rate": float("nan")}, "expected a rate"),
        ({"batch": 0}, "expected a batch of at least 1"),
        ({"keys_max": 1}, "at least 2 keys"),
        ({"rows": {"b": 1}}, "one of the tables a, found 'b'"),
        ({"rows": {"a": 0}}, "table 'a': expected rows from 1"),
        ({"hash_rows": {"a": 2**40 + 1}}, "table 'a': expected rows from 1 to 1099511627776"),
        ({"rows": {"a": 5}, "hash_rows": {"a": 5}}, "found them with and without hashing"),
    ],
)
def test_countings_that_are_refused(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Counting(("a",), **extra)


def test_memory_is_bounded_when_a_sketch_counts() -> None:
    counter, profile = profiled(
        [Column(np.arange(400_000))], Counting(("a",), keys_max=1000), range(0, 400_000, 5000)
    )
    table = profile.tables["a"]
    assert len(table.keys) <= 1000
    assert table.error > 0 and table.accesses == 400_000
    assert counter.memory_bytes < 64 << 20


def test_files_are_counted_one_after_the_other(tmp_path: Path) -> None:
    day = tmp_path / "day.tsv"
    synthetic.write(day, samples=3000, rows=scaled_rows(0.001))
    told: list[int] = []
    files: list[SampleFile] = open_files([day, day], ["C3", "C4"])
    counter = count_files(files, Counting(("a", "b"), hash_rows={"a": 5000}), told.append)
    [*chunks] = files[0].chunks()
    true = Counter((np.concatenate([chunk.columns[0].ids for chunk in chunks]) % 5000).tolist())
    table = counter.profile().tables["a"]
    counted = dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True))
    assert counted == {key: 2 * times for key, times in true.items()}
    assert sum(told) == 2 * day.stat().st_size
    assert counter.samples == 6000


# Curves, sizes, plots


def test_coverage_over_all_tables() -> None:
    columns = [Column(np.repeat([0, 1], [90, 10])), Column(np.repeat([0, 1, 2], [50, 30, 20]))]
    _, profile = profiled(columns, Counting(("a", "b"), rows={"a": 7, "b": 3}))
    shares = np.array([0.0, 0.1, 0.2, 0.3, 1.0])
    assert overall_coverage(profile, shares) == pytest.approx([0, 0.45, 0.7, 0.85, 1])
    assert [curve.name for curve in coverage_plot(profile, by_table=True).curves] == [
        *("all tables", "a", "b")
    ]


def test_sizes_looked_at() -> None:
    assert sizes.looked_at(1000).tolist() == [64, 100, 200, 300, 500, 1000]
    assert sizes.looked_at(10**6)[:6].tolist() == [100, 200, 300, 500, 1000, 2000]
    assert sizes.looked_at(3).tolist() == [3]


def test_slots_for_a_target() -> None:
    slots, rates = [10, 100, 1000], [0.2, 0.4, 0.8]
    assert sizes.slots_for(0.1, slots, rates) == 10
    assert sizes.slots_for(0.4, slots, rates) == 100
    assert sizes.slots_for(0.6, slots, rates) == 317
    assert sizes.between(0.81, slots, rates) is None
    around = sizes.between(0.6, slots, rates)
    assert around is not None and (around[0], around[-1], len(around)) == (100, 1000, 9)
    assert str(sizes.between(0.1, slots, rates)) == "[10]"


@pytest.mark.parametrize("dim", [4, 16, 100])
def test_cache_bytes_give_the_slots_that_were_asked_for(tmp_path: Path, dim: int) -> None:
    slots = 5000
    cache_bytes = sizes.CacheBytes(Layout(dim, 1, "rowwise_adagrad")).of(slots)
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


def test_row_bytes_are_padded_as_rows_are() -> None:
    assert sizes.row_bytes_of(Layout(16, 1, "rowwise_adagrad")) == 80
    assert sizes.row_bytes_of(sizes.layout_of_bytes(68)) == 80
    assert sizes.row_bytes_of(sizes.layout_of_bytes(1)) == 16


def curves_plot(count: int = 2, *, x_is_share: bool = True) -> plots.Plot:
    x = np.geomspace(1e-4, 1, 50)
    return plots.Plot(
        "hits",
        "share of rows",
        "hit rate",
        [plots.Curve(f"curve {i}", x, x ** (0.1 * (i + 1))) for i in range(count)],
        x_is_share,
    )


def test_text_plot_fits_a_small_terminal_and_names_its_curves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # as it is piped, it is of one size everywhere
    text = plots.text(curves_plot())
    lines = text.splitlines()
    assert len(lines) == plots.TEXT_LINES
    assert max(map(len, lines)) <= plots.TEXT_COLUMNS
    assert "\x1b" not in text
    for word in ("hits", "* curve 0", "o curve 1", "0.01 %", "100 %", "share of rows"):
        assert word in text


def test_text_plot_begins_anew_each_time() -> None:
    assert plots.text(curves_plot()) == plots.text(curves_plot())


def test_text_plot_of_sizes() -> None:
    curve = plots.Curve("c", np.array([0.0, 10.0, 1e6]), np.array([0.0, 0.5, 1.0]))
    text = plots.text(plots.Plot("t", "slots", "hits", [curve], x_is_share=False))
    assert "1e+06" in text or "1000000" in text


def test_text_plot_without_plotext_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert plots.text(curves_plot()) == '(a plot here needs more: pip install "embstore[data]")'


def test_picture_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    plots.check_picture(path)
    plots.write_picture(path, [curves_plot(), curves_plot(30)])
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_pictures_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="a folder that is there"):
        plots.check_picture(tmp_path / "absent" / "x.png")
    with pytest.raises(StorageError, match="expected to write"):
        plots.write_picture(tmp_path / "absent" / "x.png", [curves_plot()])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidArgumentError, match=r'x\.png needs more: .*"embstore\[data\]"'):
        plots.check_picture(tmp_path / "x.png")

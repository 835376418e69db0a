"""Rows as other programs write them, imported: the values that NumPy has for them in float32."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Adam, Uniform
from embstore.errors import InvalidArgumentError
from embstore_client.files import about_file, import_table

pa = pytest.importorskip("pyarrow", reason="needs the extra 'data'")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

DIM, ROWS = 4, 3000
KEYS = np.arange(0, 2000, 2, dtype=np.int64)
DOUBLES = np.random.default_rng(1801).normal(size=(len(KEYS), DIM))
"""That float32 has not."""
WEIGHTS = DOUBLES.astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embstore.Store]:
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20) as opened:
        yield opened


@pytest.fixture
def table(store: embstore.Store) -> embstore.Table:
    return store.create_table(
        "ads", dim=DIM, rows=ROWS, optimizer=Adam(0.1), initializer=Uniform(-1.0, 1.0)
    )


def check(table: embstore.Table, place: Path, keys: Any = KEYS, **how: Any) -> None:
    """Import a file, of which nothing was there, and compare with the rows that it was made of."""
    table.assign(np.arange(ROWS), np.zeros((ROWS, DIM), np.float32))
    seen: list[tuple[int, int]] = []
    done = import_table(
        table, place, batch_rows=300, progress=lambda rows, of: seen.append((rows, of)), **how
    )
    assert done.rows == len(KEYS) == seen[-1][0]
    assert {of for _, of in seen} == {len(KEYS)}
    assert max(np.diff([0, *(rows for rows, _ in seen)])) <= 300
    expected = np.zeros((ROWS, DIM), np.float32)
    expected[keys] = WEIGHTS
    np.testing.assert_array_equal(table.lookup(np.arange(ROWS)), expected)


@pytest.mark.parametrize("rows", [WEIGHTS, DOUBLES], ids=["float32", "float64"])
@pytest.mark.parametrize("key", [pa.int64(), pa.int32(), pa.uint64(), pa.uint16()], ids=str)
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda item: pa.list_(item, DIM)])
def test_parquet_lists(table, tmp_path, rows, key, kind):
    lists = pa.array(list(rows), kind(pa.from_numpy_dtype(rows.dtype)))
    columns = {"name": ["x"] * len(KEYS), "embedding": lists, "id": pa.array(KEYS, key)}
    parquet.write_table(pa.table(columns), tmp_path / "ads.parquet")
    check(table, tmp_path / "ads.parquet")


def test_parquet_columns_of_elements(table, tmp_path):
    elements = {f"e{i}": DOUBLES[:, i] for i in range(DIM)}
    columns = {"item": KEYS, "name": ["x"] * len(KEYS), "seen": KEYS} | elements
    parquet.write_table(pa.table(columns), tmp_path / "ads.parquet")
    check(table, tmp_path / "ads.parquet", key="item")


WORDS = [f"wörd {key}" for key in KEYS]


def hashed_check(table: embstore.Table, place: Path, ids: Any = None, **how: Any) -> None:
    """Import rows whose keys are the hashes of ids; of those with one key the last row stays."""
    keys = embstore.hash_ids(WORDS if ids is None else ids, feature="ads", rows=ROWS)
    assert len(np.unique(keys)) < len(keys), "some share a row"
    table.assign(np.arange(ROWS), np.zeros((ROWS, DIM), np.float32))
    assert import_table(table, place, batch_rows=300, ids="hash", **how).rows == len(KEYS)
    expected = np.zeros((ROWS, DIM), np.float32)
    for key, row in zip(keys.tolist(), WEIGHTS, strict=True):
        expected[key] = row
    np.testing.assert_array_equal(table.lookup(np.arange(ROWS)), expected)


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(WORDS),
        pa.array([None, *WORDS[1:]]),
        pa.array(WORDS).dictionary_encode(),
        pa.array((KEYS.astype(np.uint64) << np.uint64(54))[::-1]),
    ],
    ids=["text", "null", "dictionary", "uint64"],
)
def test_parquet_of_hashed_ids(table, tmp_path, ids):
    lists = pa.array(list(WEIGHTS), pa.list_(pa.float32()))
    parquet.write_table(pa.table({"id": ids, "rows": lists}), tmp_path / "ads.parquet")
    hashed_check(table, tmp_path / "ads.parquet", ids)


def test_text_of_hashed_ids(table, tmp_path):
    columns = {"word": WORDS} | {f"e{i}": DOUBLES[:, i] for i in range(DIM)}
    csv.write_csv(pa.table(columns), tmp_path / "ads.csv")
    hashed_check(table, tmp_path / "ads.csv", key="word")
    lines = [
        f"{word.replace(' ', '_')} {' '.join(map(repr, row.tolist()))}\n"
        for word, row in zip(WORDS, DOUBLES, strict=True)
    ]
    (tmp_path / "glove.txt").write_text("".join(lines))
    hashed_check(table, tmp_path / "glove.txt", [word.replace(" ", "_") for word in WORDS])


def test_tensors_of_hashed_ids(table, tmp_path):
    np.savez(tmp_path / "ads.npz", words=np.array(WORDS), rows=WEIGHTS)
    hashed_check(table, tmp_path / "ads.npz", key="words")


@pytest.mark.parametrize(
    "ids",
    [pa.array(WORDS), pa.array(KEYS - 1), pa.array(KEYS.astype(np.uint64) + np.uint64(2**63))],
    ids=["text", "negative", "uint64"],
)
def test_ids_that_are_no_keys_are_hashed_as_the_refusal_says(table, tmp_path, ids):
    lists = pa.array(list(WEIGHTS), pa.list_(pa.float32()))
    parquet.write_table(pa.table({"id": ids, "rows": lists}), tmp_path / "ads.parquet")
    with pytest.raises(InvalidArgumentError) as refused:
        import_table(table, tmp_path / "ads.parquet")
    ((name, value),) = re.findall(r'give an import (\w+)="(\w+)"', str(refused.value))
    assert import_table(table, tmp_path / "ads.parquet", **{name: value}).rows == len(KEYS)


def test_hashed_ids_that_are_refused(table, tmp_path):
    np.save(tmp_path / "a.npy", WEIGHTS)
    for said, how in (
        ("expected a tensor 'keys' of keys, found none", {"ids": "hash"}),
        ("expected no optimizer state with hashed ids", {"ids": "hash", "with_state": True}),
        ('expected ids to be "keys" or "hash", found \'text\'', {"ids": "text"}),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            import_table(table, tmp_path / "a.npy", **how)


@pytest.mark.parametrize("packed", [None, "gzip", "zstd", "bz2", "lz4"])
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_text_with_a_header(table, tmp_path, ending, packed):
    elements = {f"e{i}": DOUBLES[:, i] for i in range(DIM)}
    end = {None: "", "gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "lz4": ".lz4"}[packed]
    place, options = tmp_path / f"ads.{ending}{end}", csv.WriteOptions()
    options.delimiter = {"csv": ",", "tsv": "\t"}[ending]
    with pa.output_stream(str(place), compression=packed) as stream:
        csv.write_csv(pa.table({"id": KEYS} | elements), stream, options)
    check(table, place)
    with pytest.raises(InvalidArgumentError, match="a column 'no' of keys, found 'id', 'e0'"):
        import_table(table, place, key="no")


@pytest.mark.parametrize("ending", ["txt", "txt.gz", "vec", "vec.zst"])
def test_glove(table, tmp_path, ending):
    words = [",", '"', ".", "'s", "the", *(f"wörd{i}" for i in range(len(KEYS) - 5))]
    lines = [
        f"{word} {' '.join(map(repr, row))}\n"
        for word, row in zip(words, DOUBLES.tolist(), strict=True)
    ]
    head = [f"{len(lines)} {DIM}\n"] if ending.startswith("vec") else []
    place = tmp_path / f"glove.{ending}"
    with pa.output_stream(str(place), compression="detect") as stream:
        stream.write("".join(head + lines).encode())
    check(table, place, keys=np.arange(len(KEYS)))
    with pytest.raises(InvalidArgumentError, match=r"no name of a column.*found 'x'"):
        import_table(table, place, tensor="x")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "id,a,b\n1,2\n", "a whole file of its format: CSV parse error: .*Expected 3"),
        ("a.csv", "id,a,b,c,d\n1,2,3,4,x\n", "float: invalid value 'x'"),
        ("a.csv", "id,a,b,c,d\n1,2,3,4,\n", "no null in column 'd'"),
        ("a.csv", "id,a,b,c,d\n,1,2,3,4\n", "no null in column 'id'"),
        (
            "a.csv",
            "id,a,b,c,d\n\n1,1,2,3,4\n0x10,1,2,3,4\n",
            "digits, found '0x10' in line 4",
        ),
        (
            "a.tsv",
            "id\ta\tb\tc\td\n1_000\t1\t2\t3\t4\n",
            "'id' to be of integers in decimal",
        ),
        ("a.csv", "id,a\n1,2\n", "rows of 4 elements, as table 'ads' has, found 1"),
        ("a.csv", "", "a whole file of its format: Empty CSV file"),
        ("a.csv", "id\n1\n", "one column of lists of floats, found 'id'"),
        ("a.txt", "the 1 2 3 4\n. . 1 2 3 4\n", "a whole file of its format"),
        ("a.vec", "3 4\nthe 1 2 3 4\na 1 2 3 4\n", "3 vectors, as the first line .* found 2"),
    ],
)
def test_text_that_is_refused(table, tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    before = table.digest()
    with pytest.raises(InvalidArgumentError, match=rf"a\.(csv|tsv|txt): expected.*{said}|{said}"):
        import_table(table, tmp_path / name)
    assert table.digest() == before


def test_npz(table, tmp_path):
    place = tmp_path / "ads.npz"
    np.savez(place, DOUBLES)
    check(table, place, keys=np.arange(len(KEYS)))
    np.savez_compressed(place, keys=KEYS.astype(np.uint32), weights=WEIGHTS, other=WEIGHTS)
    check(table, place)
    np.savez(place, a=DOUBLES, b=WEIGHTS + 1, ids=KEYS)
    check(table, place, tensor="a", key="ids")
    with pytest.raises(InvalidArgumentError, match=r"one tensor .* found 'a', 'b': name one"):
        import_table(table, place)
    with pytest.raises(InvalidArgumentError, match="a tensor 'a' of keys, found 'ids'"):
        import_table(table, place, tensor="a", key="a")
    np.savez(place, a=np.array([object()]))
    with pytest.raises(InvalidArgumentError, match="a whole file of its format"):
        import_table(table, place)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", ">f4", "<f4"])
def test_npy_of_other_floats(table, tmp_path, dtype):
    np.save(tmp_path / "ads.npy", DOUBLES.astype(dtype))
    check(table, tmp_path / "ads.npy", keys=np.arange(len(KEYS)))


def write_safetensors(place: Path, tensors: dict[str, tuple[str, Any]]) -> None:
    """Write a file of tensors (type, array); of bfloat16, the library writes none of NumPy."""
    header: dict[str, Any] = {}
    content = b""
    for name, (dtype, array) in tensors.items():
        begin, content = len(content), content + array.tobytes()
        offsets = [begin, len(content)]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    place.write_bytes(len(text).to_bytes(8, "little") + text + content)


def test_safetensors_of_other_types(table, tmp_path):
    pytest.importorskip("safetensors")
    place = tmp_path / "ads.safetensors"
    halves = (WEIGHTS.view(np.uint32) >> 16).astype(np.uint16)
    write_safetensors(place, {"emb.weight": ("BF16", halves), "bias": ("BF16", halves[0])})
    assert import_table(table, place, batch_rows=300).rows == len(KEYS)
    expected = (halves.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(table.lookup(np.arange(len(KEYS))), expected)
    write_safetensors(place, {"keys": ("U32", KEYS.astype("<u4")), "weights": ("F64", DOUBLES)})
    check(table, place)
    write_safetensors(place, {"emb.weight": ("F8_E4M3", halves.astype(np.uint8))})
    with pytest.raises(InvalidArgumentError, match="one tensor of two dimensions, found none"):
        import_table(table, place)


def test_the_commands(store, tmp_path, shell, monkeypatch):
    """`--create` opened the file without the name of its tensor."""
    from contextlib import nullcontext

    from embstore_server.cli import connection

    monkeypatch.setattr(connection, "connected", lambda *way: nullcontext(store))
    place = str(tmp_path / "two.npz")
    np.savez(place, a=WEIGHTS, b=DOUBLES, ids=KEYS)
    words = "import", "ads", place, "--tensor", "b", "--key", "ids", "--create"
    refused = shell(*words)
    assert refused.status == 2 and "embstore table create" in refused.err
    create = ["ads", "--dim", "4", "--rows", "3000", "--optimizer", "sgd", "--learning-rate", "1"]
    assert shell("table", "create", *create, "--initializer", "constant:0").status == 0
    assert shell(*words).out == f"1,000 rows of {place} are in ads, t 0\n"
    np.testing.assert_array_equal(store.table("ads").lookup(KEYS), WEIGHTS)
    assert about_file(place, tensor="b") is None
    assert shell(*words, "--ids", "hash").status == 0
    last = embstore.hash_ids(KEYS[-1:], feature="ads", rows=3000)
    np.testing.assert_array_equal(store.table("ads").lookup(last), WEIGHTS[-1:])
    assert shell(*words, "--ids", "text").status == 2


@pytest.mark.parametrize("name", ["ads.csv", "ads.tsv", "ads.vec"])
@pytest.mark.parametrize("number", ["1e39", " -3.5e38", "1e400"])
def test_a_number_beyond_float32_is_refused_in_text(table, tmp_path, name, number):
    """It became infinite. Other batches, and lines that are empty, come before it."""
    separator = {"csv": ",", "tsv": "\t", "vec": " "}[name[4:]]
    number = number.strip() if separator == " " else number
    first = "key,a,b,c,d".replace(",", separator) if separator != " " else f"{len(KEYS)} {DIM}"
    lines = [separator.join([str(key), "1", "inf", "-Infinity", "2"]) for key in KEYS]
    lines[700] = separator.join([str(KEYS[700]), "1", "2", "3", number])
    lines[600:600] = ["", ""]
    place = tmp_path / name
    place.write_text("\n".join([first, *lines]))
    column = "f4" if separator == " " else "d"
    found = f"line 704: expected column '{column}' that float32 can have, found {number.strip()}"
    with pytest.raises(InvalidArgumentError, match=re.escape(found)) as refused:
        import_table(table, place, batch_rows=100)
    assert "700 rows of the file were written before" in str(refused.value)


@pytest.mark.parametrize("name", ["ads.csv", "ads.csv.gz"])
def test_infinity_that_a_text_says_is_taken(table, tmp_path, name):
    place = tmp_path / name
    opened = gzip.open if name.endswith("gz") else open
    with opened(place, "wt") as file:
        file.write("key,a,b,c,d\n1,inf,-INF,Infinity,3.4028235e38\n")
    assert import_table(table, place).rows == 1
    largest = np.finfo(np.float32).max
    expected = np.array([[np.inf, -np.inf, np.inf, largest]], np.float32)
    np.testing.assert_array_equal(table.lookup([1]), expected)

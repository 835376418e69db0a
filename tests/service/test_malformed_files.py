"""Files that an import refuses: why, in a sentence, and what was written before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Adagrad, Adam, Ftrl, Sgd, Uniform
from embstore.errors import InvalidArgumentError, StorageError
from embstore_client.files import about_file, export_table, import_table

DIM, ROWS = 4, 100
KEYS = np.arange(0, 60, 2, dtype=np.int64)
WEIGHTS = np.arange(KEYS.size * DIM, dtype=np.float32).reshape(-1, DIM)
WHOLE = ["safetensors", "parquet"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embstore.Store]:
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20) as opened:
        yield opened


@pytest.fixture
def table(store: embstore.Store) -> embstore.Table:
    return made(store, "ads")


def made(store: embstore.Store, name: str, optimizer: Any = None, **given: Any) -> embstore.Table:
    usual: dict[str, Any] = {"dim": DIM, "rows": ROWS, "initializer": Uniform(-1.0, 1.0)}
    return store.create_table(name, **(usual | {"optimizer": optimizer or Adam(0.1)} | given))


def written(place: Path, keys: Any, weights: Any) -> Path:
    """Write a file as another program does."""
    if place.suffix == ".safetensors":
        save_file = pytest.importorskip("safetensors.numpy").save_file
        save_file({"keys": keys, "weights": weights}, place)
    else:
        pa = pytest.importorskip("pyarrow")
        kind = pa.list_(pa.from_numpy_dtype(weights.dtype), weights.shape[1])
        column = pa.array(list(weights), kind)
        pytest.importorskip("pyarrow.parquet").write_table(
            pa.table({"key": keys, "weights": column}), place
        )
    return place


def refused(table: embstore.Table, place: Path, *parts: str, **how: Any) -> None:
    """Expect a refusal that names the file and has these parts, and changes nothing."""
    before = table.digest(), table.t
    with pytest.raises(InvalidArgumentError) as caught:
        import_table(table, place, **how)
    text = str(caught.value)
    assert text.startswith(f"{place}: expected ")
    assert "written before" not in text
    missing = [part for part in parts if part not in text]
    assert not missing, f"not in {text!r}"
    assert (table.digest(), table.t) == before


def changed(array: Any, at: int, value: Any) -> Any:
    """Return an array with another value, or row, in one place."""
    copy = array.copy()
    copy[at] = value
    return copy


@pytest.mark.parametrize("kind", WHOLE)
def test_files_of_other_programs(table, tmp_path, kind):
    place = written(tmp_path / f"ads.{kind}", KEYS, WEIGHTS)
    assert about_file(place) is None
    done = import_table(table, place)
    assert (done.rows, done.t) == (len(KEYS), 0)
    assert (table.lookup(KEYS) == WEIGHTS).all()
    half = written(tmp_path / f"half.{kind}", KEYS, WEIGHTS.astype(np.float16))
    import_table(table, half)
    assert (table.lookup(KEYS) == WEIGHTS).all()
    empty = written(tmp_path / f"empty.{kind}", KEYS[:0], WEIGHTS[:0])
    assert import_table(table, empty).rows == 0
    refused(table, place, "exported with optimizer state", with_state=True)


@pytest.mark.parametrize("kind", WHOLE)
def test_keys_and_rows_that_are_not_a_tables(table, tmp_path, kind):
    place = tmp_path / f"ads.{kind}"
    for keys, found in (
        (changed(KEYS, 9, KEYS[8]), "16 after 16"),
        (KEYS[::-1].copy(), "56 after 58"),
        (changed(KEYS, 0, -3), "-3 after -1"),
    ):
        refused(table, written(place, keys, WEIGHTS), "keys that rise", found)
    refused(table, written(place, KEYS, WEIGHTS[:, :3].copy()), "4 elements", "'ads'", "found 3")
    refused(table, written(place, KEYS, changed(WEIGHTS, 5, np.nan)), "no NaN", "key 10")
    refused(table, written(place, KEYS.astype(np.float64), WEIGHTS), "key", "of integers")
    refused(table, written(place, changed(KEYS, 0, -3).view(np.uint64), WEIGHTS), "below 2**63")
    refused(table, written(place, KEYS, WEIGHTS.astype(np.int32)), "float32, float16", "int32")
    large = changed(WEIGHTS.astype(np.float64), 5, 1e39)
    refused(table, written(place, KEYS, large), "within the range of float32, found 1e+39")
    import_table(table, written(place, KEYS, changed(WEIGHTS, 5, np.nan)), allow_nan=True)
    assert np.isnan(table.lookup([10])).all()
    import_table(table, written(place, KEYS, changed(WEIGHTS, 5, np.inf)))
    assert np.isinf(table.lookup([10])).all()


@pytest.mark.parametrize("kind", WHOLE)
def test_what_was_written_before_is_said(table, tmp_path, kind):
    place = written(tmp_path / f"ads.{kind}", KEYS, changed(WEIGHTS, 25, np.nan))
    with pytest.raises(
        InvalidArgumentError, match=r"key 50: .*--allow-nan\)\. 20 rows of the file were"
    ):
        import_table(table, place, batch_rows=10)
    assert (table.lookup(KEYS[:20]) == WEIGHTS[:20]).all()
    beyond = written(place, changed(KEYS, 29, ROWS), WEIGHTS)
    with pytest.raises(InvalidArgumentError, match=r"100.* 20 rows .* can be done again"):
        import_table(table, beyond, batch_rows=10)
    import_table(table, written(place, KEYS, WEIGHTS))
    assert (table.lookup(KEYS) == WEIGHTS).all()


@pytest.mark.parametrize("kind", [*WHOLE, "npy"])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_files_that_were_cut_off(store, table, tmp_path, kind, share):
    if kind != "npy":
        pytest.importorskip({"parquet": "pyarrow"}.get(kind, kind))
    table.update(KEYS, WEIGHTS)
    place = tmp_path / f"ads.{kind}"
    export_table(table, place)
    content = place.read_bytes()
    place.write_bytes(content[: int(share * len(content))])
    refused(made(store, "other"), place, "a whole file of its format")
    place.write_bytes(content[::-1])
    refused(made(store, "other"), place, "a whole file of its format")


def test_arrays_that_are_no_table(table, tmp_path):
    place = tmp_path / "ads.npy"
    np.save(place, np.zeros((ROWS + 1, DIM), np.float32))
    refused(table, place, "at most the 100 rows", "found 101", "grow it")
    np.save(place, np.zeros((9, DIM), np.int16))
    refused(table, place, "float32, float16 or float64", "int16")
    np.save(place, np.zeros(9, np.float32))
    refused(table, place, "(rows, dim)", "(9,)")
    np.save(place, np.array([["a", object()]]), allow_pickle=True)
    refused(table, place, "a whole file of its format")
    np.save(place, np.zeros((9, DIM), np.float32))
    refused(table, place, "no name of a tensor", tensor="x")
    refused(table, place, "exported with optimizer state", with_state=True)
    with pytest.raises(InvalidArgumentError, match="batch_rows of at least 1"):
        import_table(table, place, batch_rows=0)
    with pytest.raises(InvalidArgumentError, match=r"end with \.safetensors, .* found ads\.xlsx"):
        import_table(table, "ads.xlsx")
    with pytest.raises(StorageError, match=r"none\.npy: No such file"):
        import_table(table, tmp_path / "none.npy")


def test_tensors_by_name(table, tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    place = tmp_path / "model.safetensors"
    tensors = {"a.weight": WEIGHTS, "b.weight": WEIGHTS + 1, "bias": WEIGHTS[0]}
    save_file(tensors, place)
    refused(table, place, "one tensor of two dimensions", "'a.weight', 'b.weight': name one")
    refused(table, place, "a tensor 'bias' of rows", "'a.weight', 'b.weight'", tensor="bias")
    assert import_table(table, place, tensor="b.weight").rows == len(WEIGHTS)
    assert (table.lookup(np.arange(len(WEIGHTS))) == WEIGHTS + 1).all()
    save_file({"keys": KEYS[:-1].copy(), "weights": WEIGHTS}, place)
    refused(table, place, "30 keys", "(29,)")


def test_columns_by_name(table, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    place, kind = tmp_path / "ads.parquet", pa.list_(pa.float32(), DIM)
    rows = list(WEIGHTS)
    parquet.write_table(pa.table({"no": KEYS, "emb": pa.array(rows, kind)}), place)
    refused(table, place, "a column 'key' or 'id' of keys, found 'no', 'emb': name one")
    assert import_table(table, place, key="no").rows == len(KEYS)
    refused(table, place, "column 'emb' of integers, found fixed_size_list", key="emb")
    refused(table, place, "a column 'x' of rows, found 'no', 'emb'", key="no", tensor="x")
    parquet.write_table(pa.table({"key": KEYS, "weights": pa.array(KEYS)}), place)
    refused(table, place, "'weights' to be lists of float32, float16 or float64, found int64")
    two = [pa.array(rows, kind)] * 2
    parquet.write_table(pa.table([KEYS, *two], ["key", "a", "b"]), place)
    refused(table, place, "one column of lists of floats, found 'key', 'a', 'b': name one of them")
    assert import_table(table, place, tensor="b").rows == len(KEYS)
    uneven = pa.array([*rows[:-1], rows[-1][:2]], pa.list_(pa.float32()))
    parquet.write_table(pa.table({"key": KEYS, "weights": uneven}), place)
    refused(table, place, "lists of 4 elements in column 'weights', as the first has, found one of")
    some: list[Any] = [*rows[:3], [1.0, None, 2.0, 3.0], *rows[4:]]
    parquet.write_table(pa.table({"key": KEYS, "weights": pa.array(some, kind)}), place)
    refused(table, place, "no null in column 'weights'")
    keys: list[Any] = [None, *KEYS[1:].tolist()]
    parquet.write_table(pa.table({"key": keys, "weights": pa.array(rows, kind)}), place)
    refused(table, place, "no null in column 'key'")


@pytest.mark.parametrize("kind", WHOLE)
def test_state_of_another_optimizer(store, tmp_path, kind):
    pytest.importorskip({"parquet": "pyarrow"}.get(kind, kind))
    adam = made(store, "adam")
    adam.update(KEYS, WEIGHTS)
    place, bare = tmp_path / f"ads.{kind}", tmp_path / f"bare.{kind}"
    export_table(adam, place, with_state=True)
    export_table(adam, bare)
    for optimizer in (Ftrl(0.1), Adagrad(0.1), Sgd(0.1)):  # that of FTRL is as wide
        other = made(store, f"of-{optimizer.kind}", optimizer)
        refused(other, place, f"state of {optimizer.kind}", "found state of adam", with_state=True)
        assert import_table(other, place).t == 0
    refused(made(store, "other"), bare, "exported with optimizer state", with_state=True)
    refused(made(store, "small", rows=60), place, "at most the 60 rows", "found 100")
    adam.update(KEYS, WEIGHTS)
    refused(adam, place, "at most the 1 updates", "t = 2", "go back", with_state=True)


def test_what_a_file_says_must_make_sense(table, tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    place = tmp_path / "ads.safetensors"
    for said in ("", "[]", "{}", '{"version": 2, "config": {}}', '{"version": 1, "config": 3}'):
        save_file({"keys": KEYS, "weights": WEIGHTS}, place, {"embstore": said})
        refused(table, place, "embstore's metadata in the file")


def test_the_commands(store, tmp_path, shell, monkeypatch):
    pytest.importorskip("safetensors", reason="needs the extra 'data'")
    from contextlib import nullcontext

    from embstore_server.cli import connection

    monkeypatch.setattr(connection, "connected", lambda *way: nullcontext(store))
    table, place = made(store, "ads"), tmp_path / "ads.safetensors"
    table.update(KEYS, WEIGHTS)
    store.checkpoint("one")
    table.update(KEYS[:3], WEIGHTS[:3])
    words = ["export", "ads", "-o", str(place), "--with-state", "--label", "one"]
    document = shell(*words, "--json").document
    assert document == {
        "file": str(place),
        "table": "ads",
        "label": "one",
        "since": None,
        "rows": 30,
        "bytes": place.stat().st_size,
        "command": 2,
        "t": 1,
    }
    assert "30 rows of ads as of command 2, t 1" in shell(*words).out
    digest = table.digest()
    since = str(tmp_path / "since.safetensors")
    shell("export", "ads", "-o", since, "--with-state", "--since", "one")
    assert shell("import", "ads", str(place), "--with-state").status == 2
    store.drop_table("ads")
    assert shell("import", "ads", str(place)).status == 3
    ended = shell("import", "ads", str(place), "--with-state", "--create")
    assert ended.out == f"30 rows of {place} are in ads, t 1\n"
    assert shell("import", "ads", since, "--with-state", "--json").document["t"] == 2
    assert store.table("ads").digest() == digest
    store.drop_table("ads")
    refused = shell("import", "ads", since, "--create")
    assert refused.status == 2 and "all rows of the table to create" in refused.err
    assert store.tables() == []
    np.save(tmp_path / "x.npy", WEIGHTS)
    assert "embstore table create" in shell("import", "x", str(tmp_path / "x.npy"), "--create").err
    assert shell("export", "ads", "-o", since, "--since", "none").status == 3

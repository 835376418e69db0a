"""Tables as files: an export is of one command, an import of it makes an equal table."""

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Constant, Normal, Uniform
from embstore.errors import (
    CapacityError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    StorageError,
    StoreInUseError,
)
from embstore_client.files import FileOrigin, about_file, export_table, import_table, places
from tests.conformance.backends import TINY
from tests.conformance.cases import OPTIMIZERS, batch, generator, normal

DIM, ROWS = 5, 3000
WHOLE = ["safetensors", "parquet"]
"""The formats that have keys, state, and what is said of the table."""

Open = Callable[..., embstore.Store]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens an embedded store by name, with a cache that its rows leave."""
    opened: list[embstore.Store] = []

    def open_one(name: str = "store", **options: Any) -> embstore.Store:
        options = {"cache_bytes": 128 << 10, "limits": TINY} | options
        opened.append(embstore.open(tmp_path / name, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def made(store: embstore.Store, **given: Any) -> embstore.Table:
    """Return a table "ads" of a store."""
    usual: dict[str, Any] = {"dim": DIM, "rows": ROWS, "initializer": Uniform(-1.0, 1.0)}
    return store.create_table("ads", **(usual | {"optimizer": OPTIMIZERS["adam"]} | given))


def trained(table: embstore.Table, rng: np.random.Generator, calls: int = 4) -> embstore.Table:
    """Update a table a few times, and return it."""
    for _ in range(calls):
        table.update(*batch(rng, 400, ROWS, table.dim))
    return table


def format_of(kind: str) -> str:
    pytest.importorskip({"parquet": "pyarrow"}.get(kind, kind), reason="needs the extra 'data'")
    return kind


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("kind", WHOLE)
def test_an_export_with_state_makes_an_equal_table(open_store, tmp_path, kind, optimizer):
    store, file = open_store(), tmp_path / f"ads.{format_of(kind)}"
    table = trained(made(store, optimizer=optimizer), generator(1701))
    seen: list[tuple[int, int]] = []
    done = export_table(table, file, with_state=True, batch_rows=100, progress=_noting(seen))
    assert (done.rows, done.bytes) == (seen[-1][0], file.stat().st_size)
    assert done.rows == seen[-1][1] == sum(len(keys) for keys, _ in table.scan())
    assert about_file(file) == done.about == FileOrigin(table.config, store.command, 4)
    other = made(open_store("other"), optimizer=optimizer)
    read = import_table(other, file, with_state=True, batch_rows=90)
    assert (read.rows, read.t, other.t) == (done.rows, 4, 4)
    assert other.digest() == table.digest()
    again = import_table(other, file, with_state=True)
    assert (again.t, other.digest()) == (4, table.digest())


def _noting(seen: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, of: seen.append((done, of))


@pytest.mark.parametrize("kind", [*WHOLE, "npy"])
def test_an_import_without_state_assigns(open_store, tmp_path, kind):
    table = trained(made(open_store()), generator(1702))
    export_table(table, tmp_path / f"ads.{kind if kind == 'npy' else format_of(kind)}")
    other, third = made(open_store("other")), made(open_store("third"))
    import_table(other, tmp_path / f"ads.{kind}")
    keys = np.arange(ROWS) if kind == "npy" else np.concatenate([k for k, _ in table.scan()])
    third.assign(keys, table.lookup(keys))
    assert (other.t, other.digest()) == (0, third.digest())


@pytest.mark.parametrize("initializer", [Uniform(-1.0, 1.0), Normal(0.0, 1.0), Constant(0.5)])
def test_a_npy_file_has_every_row_by_its_number(open_store, tmp_path, initializer, monkeypatch):
    monkeypatch.setattr("embstore_client.files.npy_file._FILLED_ELEMENTS", 70 * DIM)
    store = open_store()
    table = made(store, initializer=initializer)
    table.assign(np.arange(500, 900), normal(generator(1703), 400, DIM))
    table.assign([0, 1300, ROWS - 10], normal(generator(1704), 3, DIM))
    store.checkpoint("one")
    expected = table.lookup(np.arange(ROWS))
    table.assign(np.arange(ROWS), np.zeros((ROWS, DIM), np.float32))
    export_table(table, tmp_path / "ads.npy", label="one", batch_rows=60)
    found = np.load(tmp_path / "ads.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    export_table(made(open_store("empty"), rows=7), tmp_path / "empty.npy")
    assert np.load(tmp_path / "empty.npy").shape == (7, DIM)


def test_what_other_programs_read(open_store, tmp_path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    parquet = pytest.importorskip("pyarrow.parquet")
    table = trained(made(open_store()), generator(1705))
    keys = np.concatenate([keys for keys, _ in table.scan()])
    weights, state = table.read_rows(keys)
    for kind in WHOLE:
        export_table(table, tmp_path / f"ads.{kind}", with_state=True, batch_rows=77)
    tensors = load_file(tmp_path / "ads.safetensors")
    assert sorted(tensors) == ["keys", "state", "weights"]
    columns = parquet.read_table(tmp_path / "ads.parquet")
    assert columns.column_names == ["key", "weights", "state"]
    for name, column, expected in (
        ("keys", "key", keys),
        ("weights", "weights", weights),
        ("state", "state", state),
    ):
        np.testing.assert_array_equal(tensors[name], expected)
        listed = np.array(columns[column].to_pylist(), expected.dtype)
        np.testing.assert_array_equal(listed, expected)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("seed", range(2))
def test_what_was_since_on_top_of_an_export_is_the_later_export(open_store, tmp_path, kind, seed):
    rng, store, kind = generator(1710 + seed), open_store(checkpoints_keep=2), format_of(kind)
    optimizer = list(OPTIMIZERS.values())[seed + 1]
    table = made(store, optimizer=optimizer)
    other = made(open_store("other"), optimizer=optimizer)
    state_dim = table.config.state_dim
    trained(table, rng)
    store.checkpoint("0")
    export_table(table, tmp_path / f"0.{kind}", label="0", with_state=True)
    import_table(other, tmp_path / f"0.{kind}", with_state=True)
    for label in ("1", "2", "3"):
        trained(table, rng, 2)
        table.assign(rng.integers(0, ROWS, 20), normal(rng, 20, DIM))
        keys = rng.permutation(ROWS)[:30]
        table.put_rows(keys, normal(rng, 30, DIM), abs(normal(rng, 30, state_dim)), 2)
        table.delete(rng.integers(0, ROWS, 40))
        table.grow(table.rows + 5)
        other.grow(table.rows)
        store.checkpoint(label)
        before, expected = str(int(label) - 1), table.digest()
        trained(table, rng, 1)
        place = tmp_path / f"{label}.{kind}"
        done = export_table(table, place, label=label, since=before, with_state=True)
        assert (done.about.label, done.about.since) == (label, before)
        assert 0 < done.rows < ROWS
        imported = import_table(other, place, with_state=True)
        assert imported.deleted == len(done.about.deleted_keys) > 0
        assert other.digest() == expected
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint '0' is kept"):
        export_table(table, tmp_path / f"x.{kind}", since="0")
    first = import_error(other, tmp_path / f"1.{kind}", with_state=True)
    assert "which cannot go back" in first
    fresh = made(open_store("fresh"), optimizer=optimizer, rows=table.rows)
    assert "with t = 4, found t = 0" in import_error(fresh, tmp_path / f"1.{kind}", with_state=True)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("kind", WHOLE)
def test_what_was_since_is_refused_but_on_top_of_what_was_before(
    open_store, tmp_path, kind, with_state
):
    """t alone cannot say: it stays 0 where rows are assigned, and where state is left out."""
    rng, kind = generator(1730), format_of(kind)
    store, other = open_store(), open_store("other")
    table, rows = made(store), normal(rng, ROWS, DIM)
    table.assign(np.arange(1000), rows[:1000])
    store.checkpoint("one")
    base, place = tmp_path / f"base.{kind}", tmp_path / f"since.{kind}"
    export_table(table, base, label="one", with_state=with_state)
    table.assign(np.arange(900, 1100), rows[900:1100] + 1)
    table.delete(np.arange(100, 160))
    about = export_table(table, place, since="one", with_state=with_state).about
    assert about.since_rows == 1000 and len(about.since_sample) > 15
    expected = table.lookup(np.arange(ROWS))

    def copy(name: str) -> embstore.Table:
        config = table.config
        known: Any = {"dim": DIM, "rows": ROWS, "optimizer": config.optimizer}
        return other.create_table(name, initializer=config.initializer, seed=config.seed, **known)

    refused = "checkpoint 'one': expected table '{}' as it was then, with 1000 rows"
    empty, few, another, right = map(copy, ("empty", "few", "another", "right"))
    few.assign(np.arange(939), rows[:939])  # those behind are none of the sample
    another.assign(np.arange(1000), rows[:1000] * 2)
    for wrong in (empty, few, another):
        said = import_error(wrong, place, with_state=with_state)
        assert refused.format(wrong.name) in said
    import_table(right, base, with_state=with_state)
    for _ in range(2):
        import_table(right, place, with_state=with_state)
        np.testing.assert_array_equal(right.lookup(np.arange(ROWS)), expected)
    few.assign(np.arange(939, ROWS), rows[939:])
    import_table(few, place, with_state=with_state)  # more rows than there were are taken


def import_error(table: embstore.Table, place: Path, **how: Any) -> str:
    """Return what an import that changes nothing is refused with."""
    before = table.digest()
    with pytest.raises(InvalidArgumentError) as caught:
        import_table(table, place, **how)
    assert table.digest() == before
    return str(caught.value)


KILLED = """if True:
    import os, signal, sys
    import embstore
    from embstore_client.files import export_table
    with embstore.open(sys.argv[1], cache_bytes=1 << 20) as store:
        export_table(store.table("ads"), sys.argv[2], batch_rows=10,
                     progress=lambda done, of: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.parametrize("kind", [*WHOLE, "npy"])
def test_a_killed_export_leaves_nothing_under_its_name(open_store, tmp_path, kind):
    kind = kind if kind == "npy" else format_of(kind)
    store, place = open_store(), tmp_path / f"ads.{kind}"
    trained(made(store), generator(1721))
    store.close()
    words = [sys.executable, "-c", KILLED, str(tmp_path / "store"), str(place)]
    for content in (None, b"what was there before"):
        if content is not None:
            place.write_bytes(content)
        done = subprocess.run(words, timeout=600, check=False)
        assert done.returncode == -signal.SIGKILL
        found = place.read_bytes() if place.exists() else None
        assert found == content
        assert place.with_name(f"{place.name}.embstore-part").exists()
    store = open_store()
    export_table(store.table("ads"), place)
    assert sorted(os.listdir(tmp_path)) == [place.name, "store"]
    other = made(open_store("other"))
    assert import_table(other, place).rows > 0


def test_an_export_that_fails_leaves_what_was_there(open_store, tmp_path):
    table, place = trained(made(open_store()), generator(1722)), tmp_path / "ads.npy"

    def fail(done: int, of: int) -> None:
        if done > 100:
            with pytest.raises(StoreInUseError, match=r"ads\.npy\.embstore-part: another export"):
                export_table(table, place)
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        export_table(table, place, batch_rows=100, progress=fail)
    assert sorted(os.listdir(tmp_path)) == ["store"]
    with pytest.raises(StorageError, match=r"none/ads\.npy: No such file"):
        export_table(table, tmp_path / "none" / "ads.npy")


@pytest.mark.parametrize("kind", WHOLE)
def test_an_import_that_was_interrupted_is_done_again(open_store, tmp_path, kind):
    table = trained(made(open_store()), generator(1723))
    place = tmp_path / f"ads.{format_of(kind)}"
    export_table(table, place, with_state=True)
    other = made(open_store("other"))

    def fail(done: int, of: int) -> None:
        if done > 200:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        import_table(other, place, with_state=True, batch_rows=100, progress=fail)
    assert other.t == 0
    import_table(other, place, with_state=True, batch_rows=100)
    assert other.digest() == table.digest()


@pytest.mark.parametrize("kind", ["safetensors", "npy"])
def test_memory_is_bounded_by_a_batch(open_store, tmp_path, kind):
    kind = kind if kind == "npy" else format_of(kind)
    store, place = open_store(limits=embstore.config.Limits()), tmp_path / f"ads.{kind}"
    table = made(store, dim=256, rows=20_000)
    for low in range(0, 20_000, 1000):
        table.assign(np.arange(low, low + 1000), np.ones((1000, 256), np.float32))
    size = 20_000 * 256 * 4
    list(table.scan(batch_rows=200))  # whatever is made once
    tracemalloc.start()
    try:
        export_table(table, place, batch_rows=200)
        import_table(table, place, batch_rows=200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 4


@pytest.mark.parametrize("url", ["memory://embstore-tests", "file://{}/deep/down"])
def test_urls(open_store, tmp_path, url):
    pytest.importorskip("fsspec", reason="needs the extra 'remote'")
    kind = format_of("safetensors")
    table = trained(made(open_store()), generator(1724))
    place = f"{url.format(tmp_path)}/ads.{kind}"
    assert export_table(table, place, with_state=True).place == place
    other = made(open_store("other"))
    import_table(other, place, with_state=True)
    assert other.digest() == table.digest()
    with pytest.raises(StorageError, match=r"none\.safetensors"):
        import_table(other, f"{url.format(tmp_path)}/none.safetensors")
    with pytest.raises(InvalidArgumentError, match="nothing-known"):
        export_table(table, "nothing-known://x/ads.npy")


def test_urls_need_fsspec_and_say_so(open_store, monkeypatch):
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("embstore_client.files.places.import_module", missing)
    with pytest.raises(InvalidArgumentError, match=r"\.\[remote\]"):
        export_table(made(open_store()), "memory://x/ads.npy")


def test_what_cannot_be_exported(open_store, tmp_path, monkeypatch):
    store = open_store()
    table = made(store)
    store.checkpoint("one")
    with pytest.raises(InvalidArgumentError, match=r"end with \.safetensors, \.parquet, \.npy"):
        export_table(table, tmp_path / "ads.csv")
    with pytest.raises(InvalidArgumentError, match="optimizer state or for the rows since"):
        export_table(table, tmp_path / "ads.npy", with_state=True)
    with pytest.raises(InvalidArgumentError, match="optimizer state or for the rows since"):
        export_table(table, tmp_path / "ads.npy", since="one")
    with pytest.raises(InvalidArgumentError, match="batch_rows of at least 1"):
        export_table(table, tmp_path / "ads.npy", batch_rows=0)
    wide = store.create_table(
        "wide", dim=8, rows=2**40, optimizer=OPTIMIZERS["sgd"], initializer=Constant(0.0)
    )
    with pytest.raises(CapacityError, match="all 1099511627776 rows of table 'wide'"):
        export_table(wide, tmp_path / "wide.npy")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "embstore_client.files.safetensors_file", raising=False)
    with pytest.raises(InvalidArgumentError, match=r"\.\[data\]"):
        export_table(table, tmp_path / "ads.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["store"]


def test_a_race_for_the_unfinished_file_loses_nobodys_file(tmp_path, monkeypatch):
    """Another export ends between opening the file and locking it."""
    place, lock = tmp_path / "a.npy", places.fcntl.flock

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(places.fcntl, "flock", lock)
        (tmp_path / "a.npy.embstore-part").replace(place)
        place.write_bytes(b"whole")
        lock(file, how)

    monkeypatch.setattr(places.fcntl, "flock", late)
    with places.writing(str(place)) as part:
        assert place.read_bytes() == b"whole"
        part.write_bytes(b"mine")
    assert place.read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_a_second_name_in_the_place_of_the_unfinished_file_is_not_written_through(tmp_path):
    precious, place = tmp_path / "precious", tmp_path / "a.npy"
    precious.write_bytes(b"precious")
    (tmp_path / "a.npy.embstore-part").hardlink_to(precious)
    with places.writing(str(place)) as part:
        part.write_bytes(b"mine")
    assert (precious.read_bytes(), place.read_bytes()) == (b"precious", b"mine")
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "precious"]


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / "a.npy.embstore-part").symlink_to(precious)
    with pytest.raises(StorageError), places.writing(str(tmp_path / "a.npy")):
        pass
    assert precious.read_bytes() == b"precious"

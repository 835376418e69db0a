"""Two opens of one directory: one writer, or any number of readers, in one process or in two."""

import errno
import signal
from pathlib import Path
from typing import Any

import pytest

from embstore.errors import EmbstoreError, PermissionDeniedError, StorageError, StoreInUseError
from tests.faults.forks import Forks
from tests.faults.promises import NOTHING, check_content, content_of
from tests.faults.refusing import RefusingFiles
from tests.faults.training import DenseStore, open_store, train

SEED = 20260310
COMMANDS = 20
WRITER: dict[str, Any] = {}
READER = {"read_only": True}
EXCLUDING = pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(WRITER, WRITER, id="writer-writer"),
        pytest.param(WRITER, READER, id="writer-reader"),
        pytest.param(READER, WRITER, id="reader-writer"),
    ],
)


@pytest.fixture
def trained(tmp_path: Path) -> DenseStore:
    """A closed store in tmp_path, and its reference."""
    dense = DenseStore()
    with open_store(tmp_path) as store:
        train(store, SEED, COMMANDS)
    train(dense, SEED, COMMANDS)
    return dense


def content_of_files(path: Path) -> dict[str, bytes]:
    """Return every file of a directory, by its path."""
    return {str(p): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def hold_open(reports: Any, path: str, options: dict[str, Any]) -> None:
    """A child: open, say so, and stay."""
    store = open_store(path, **options)
    reports.send(content_of(store))
    signal.pause()


@EXCLUDING
def test_a_lock_file_that_was_removed_lets_nobody_in(
    tmp_path: Path, trained: DenseStore, first: Any, second: Any
) -> None:
    with open_store(tmp_path, **first):
        (tmp_path / "LOCK").unlink()
        with pytest.raises(StoreInUseError, match="in use"):
            open_store(tmp_path, **second)
    open_store(tmp_path, **second).close()


@EXCLUDING
def test_second_open_in_one_process_is_refused(
    tmp_path: Path, trained: DenseStore, first: Any, second: Any
) -> None:
    with open_store(tmp_path, **first) as store:
        with pytest.raises(StoreInUseError, match="in use"):
            open_store(tmp_path, **second)
        check_content(store, content_of(trained))
    with open_store(tmp_path, **second) as store:
        check_content(store, content_of(trained))


@EXCLUDING
def test_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path, forks: Forks, trained: DenseStore, first: Any, second: Any
) -> None:
    child = forks.start(hold_open, str(tmp_path), first)
    assert child.reports.recv() == content_of(trained)
    with pytest.raises(StoreInUseError, match="in use"):
        open_store(tmp_path, **second)
    assert child.kill() == -signal.SIGKILL
    with open_store(tmp_path, **second) as store:
        check_content(store, content_of(trained))


def open_and_tell(reports: Any, path: str) -> None:
    """A child: open and close at once, and tell what came of it."""
    try:
        with open_store(path) as store:
            reports.send(content_of(store))
    except EmbstoreError as exc:
        reports.send(f"{type(exc).__name__}: {exc}")


def test_two_processes_may_create_a_store_at_once(tmp_path: Path, forks: Forks) -> None:
    for attempt in range(25):
        path = str(tmp_path / str(attempt))
        children = [forks.start(open_and_tell, path) for _ in range(3)]
        assert [child.wait() for child in children] == [0, 0, 0]
        came = [child.remaining()[0] for child in children]
        assert NOTHING in came
        assert all(c == NOTHING or c.startswith("StoreInUseError") for c in came), came


def test_other_name_of_the_directory_is_the_same_store(tmp_path: Path, trained: DenseStore) -> None:
    path = tmp_path / "store"
    (tmp_path / "link").symlink_to(path)
    with open_store(path), pytest.raises(StoreInUseError):
        open_store(tmp_path / "link")


def test_readers_share_a_store_and_change_no_file(
    tmp_path: Path, forks: Forks, trained: DenseStore
) -> None:
    before = content_of_files(tmp_path)
    children = [forks.start(hold_open, str(tmp_path), READER) for _ in range(2)]
    with open_store(tmp_path, **READER) as one, open_store(tmp_path, **READER) as two:
        for child in children:
            assert child.reports.recv() == content_of(trained)
        for store in (one, two):
            check_content(store, content_of(trained))
            store.lookup({name: range(store.table(name).rows) for name in store.tables()})
    for child in children:
        child.kill()
    assert content_of_files(tmp_path) == before


def test_reader_is_refused_every_write(tmp_path: Path, trained: DenseStore) -> None:
    with open_store(tmp_path, **READER) as store:
        ads = store.table("ads")
        weights, state = ads.read_rows([0])
        writes = [
            lambda: ads.update([0], weights),
            lambda: ads.assign([0], weights),
            lambda: ads.put_rows([0], weights, state, 1),
            lambda: ads.grow(1 << 20),
            lambda: store.update({"ads": ([0], weights)}),
            lambda: store.drop_table("ads"),
            lambda: store.checkpoint("by a reader"),
            lambda: store.restore("command-8"),
        ]
        for write in writes:
            with pytest.raises(PermissionDeniedError):
                write()
        check_content(store, content_of(trained))


def test_reader_leaves_the_leftovers_of_a_crash_to_the_next_writer(
    tmp_path: Path, trained: DenseStore
) -> None:
    leftover = tmp_path / "log" / "000000009999.log"
    leftover.write_bytes(b"never committed")
    with open_store(tmp_path, **READER) as store:
        check_content(store, content_of(trained))
    assert leftover.exists()
    with open_store(tmp_path) as store:
        check_content(store, content_of(trained))
    assert not leftover.exists()


def test_reader_of_nothing_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="found none"):
        open_store(tmp_path / "nothing", **READER)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("verb", ["create", "write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("nth", [1, 2])
def test_creation_that_failed_holds_no_lock(tmp_path: Path, verb: str, nth: int) -> None:
    files = RefusingFiles(tmp_path / "store").refuse((verb,), nth, errno.EIO)
    with pytest.raises(StorageError):
        open_store(files.root, files=files)
    files.relent()
    with open_store(files.root, files=files) as store:
        assert store.tables() == []

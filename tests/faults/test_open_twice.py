"""Two opens of one directory: one writer, or any number of readers, in one process or in two."""

import errno
from typing import Any

import pytest

from embstore.errors import EmbstoreError, StorageError, StoreInUseError
from tests.faults.promises import NOTHING, content_of
from tests.faults.refusing import RefusingFiles
from tests.faults.training import open_store

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


@EXCLUDING
def test_a_lock_file_that_was_removed_lets_nobody_in(tmp_path, first, second):
    open_store(tmp_path).close()
    with open_store(tmp_path, **first):
        (tmp_path / "LOCK").unlink()
        with pytest.raises(StoreInUseError, match="in use"):
            open_store(tmp_path, **second)
    open_store(tmp_path, **second).close()


def open_and_tell(reports: Any, path: str) -> None:
    """A child: open and close at once, and tell what came of it."""
    try:
        with open_store(path) as store:
            reports.send(content_of(store))
    except EmbstoreError as exc:
        reports.send(f"{type(exc).__name__}: {exc}")


def test_two_processes_may_create_a_store_at_once(tmp_path, forks):
    for attempt in range(25):
        path = str(tmp_path / str(attempt))
        children = [forks.start(open_and_tell, path) for _ in range(3)]
        assert [child.wait() for child in children] == [0, 0, 0]
        came = [child.remaining()[0] for child in children]
        assert NOTHING in came
        assert all(c == NOTHING or c.startswith("StoreInUseError") for c in came), came


@pytest.mark.parametrize("verb", ["create", "write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("nth", [1, 2])
def test_creation_that_failed_holds_no_lock(tmp_path, verb, nth):
    files = RefusingFiles(tmp_path / "store").refuse((verb,), nth, errno.EIO)
    with pytest.raises(StorageError):
        open_store(files.root, files=files)
    files.relent()
    with open_store(files.root, files=files) as store:
        assert store.tables() == []

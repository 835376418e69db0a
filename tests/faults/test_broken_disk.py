"""An input-output error at the nth call: nothing has changed, or the store fails as a whole."""

import errno
from pathlib import Path

import pytest

from embstore.errors import StorageError, StoreClosedError
from tests.faults.refusing import RefusingFiles, endure, script
from tests.faults.training import TABLES, VISITORS, open_store

SEED = 20260304
COMMANDS = 45


@pytest.mark.parametrize(
    ("verb", "step"),
    [
        ("write", 37),
        ("sync", 4),
        ("sync_directory", 5),
        ("rename", 2),
        ("create", 5),
        ("allocate", 2),
        ("truncate", 3),
        ("remove", 3),
        ("remove_directory", 1),
        ("make_directory", 1),
    ],
)
@pytest.mark.parametrize("turn", range(7))
def test_an_error_is_refused_whole_or_fails_the_store(
    quick_path: Path, verb: str, step: int, turn: int
) -> None:
    files = RefusingFiles(quick_path / "store").refuse((verb,), 1 + turn * step, errno.EIO)
    endure(quick_path / "store", files, SEED, script(SEED, COMMANDS), 1)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["broken", "full"])
@pytest.mark.parametrize("verb", ["remove", "remove_directory"])
def test_commit_that_cannot_clean_up_is_done_or_fails_the_store(
    quick_path: Path, verb: str, code: int
) -> None:
    """An error after the rename must not leave a store that goes on and denies its label."""
    files = RefusingFiles(quick_path / "store")
    store = open_store(files.root, files=files, checkpoints_keep=1)
    store.create_table("ads", **TABLES["ads"])
    store.create_table("visitors", **VISITORS)
    store.checkpoint("with visitors")
    store.drop_table("visitors")
    files.refuse((verb,), 1, code)
    try:
        store.checkpoint("without")
    except StorageError:
        with pytest.raises(StoreClosedError):
            store.checkpoints()
    assert files.refusals
    store.close()
    with open_store(files.root, checkpoints_keep=1) as store:
        assert [c.label for c in store.checkpoints()] == ["without"]
        assert not (files.root / "base" / "1").exists()

"""An input-output error at the nth call: nothing has changed, or the store fails as a whole."""

import errno
import itertools
import shutil
import threading
from typing import Any

import numpy as np
import pytest

from embstore.errors import StorageError, StoreClosedError
from tests.faults.promises import Promise, check_content
from tests.faults.refusing import CHANGES, READS, RefusingFiles, endure, script
from tests.faults.training import LOGGED, TABLES, VISITORS, open_store

SEED = 20260304
COMMANDS, FEW = 45, 12


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
@pytest.mark.parametrize("options", [{}, LOGGED], ids=["checkpoint", "commands"])
@pytest.mark.parametrize("turn", range(7))
def test_an_error_is_refused_whole_or_fails_the_store(quick_path, verb, step, turn, options):
    files = RefusingFiles(quick_path / "store").refuse((verb,), 1 + turn * step, errno.EIO)
    endure(quick_path / "store", files, SEED, script(SEED, COMMANDS), 1, **options)


@pytest.mark.parametrize(
    ("verb", "step"),
    [("write", 29), ("sync", 4), ("sync_directory", 4), ("truncate", 6), ("remove", 5)],
)
@pytest.mark.parametrize("turn", range(7))
def test_lack_of_room_where_it_was_promised_is_no_silent_success(quick_path, verb, step, turn):
    """Delayed allocation, quotas and file systems that copy on write may refuse as late as at a
    sync, at a removal, in room that was set aside. It is too late to refuse a command whole, so the
    store fails, and does not say that all is as it was."""
    files = RefusingFiles(quick_path / "store").refuse((verb,), 1 + turn * step, errno.ENOSPC)
    endure(quick_path / "store", files, SEED, script(SEED, COMMANDS), 1)


def open_again(files: RefusingFiles, promise: Promise) -> None:
    """Open a store, once more where that is refused, and close it."""
    try:
        store = open_store(files.root, files=files, **LOGGED)
    except StorageError:
        assert files.refusals
        store = open_store(files.root, files=files, **LOGGED)
    with store:
        check_content(store, promise)


VERBS = (*CHANGES, *READS, "write", "allocate", "truncate", "sync", "sync_directory")
NEVER = {"link", "remove_directory"}
"""Of these a store without backups and leaders makes none."""


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in NEVER])
def test_an_error_of_any_kind_of_file_is_refused_whole_or_fails_the_store(quick_path, verb):
    """The kinds are those that a run on a sound disk was seen to use."""
    steps = script(SEED, FEW)
    sound = RefusingFiles(quick_path / "sound").refuse((), 0, 0)
    endure(quick_path / "sound", sound, SEED, steps, 1, **LOGGED)
    open_again(sound, steps[-1].after)
    kinds = sorted(kind for seen, kind in sound.seen if seen == verb)
    assert kinds
    for n, kind in enumerate(kinds):
        path = quick_path / f"{n}"
        files = RefusingFiles(path).refuse((verb,), 1, errno.EIO, kind=kind)
        endure(path, files, SEED, steps, 1, **LOGGED)
        if not files.refusals:  # of a store that is opened again
            open_again(files.refuse((verb,), 1, errno.EIO, kind=kind), steps[-1].after)
        assert files.refusals, kind
        shutil.rmtree(path)


class HeldCompaction(RefusingFiles):
    """Holds a compaction until it is released."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.released = threading.Event()

    def reached(self, point: str) -> None:
        assert point != "compaction:records" or self.released.wait(300)


def test_merge_that_ends_after_a_failure_is_not_installed(quick_path):
    """Its segments may be those of the commit that failed after its rename."""
    files = HeldCompaction(quick_path / "store")
    store = open_store(files.root, files=files)
    table = store.create_table("ads", **TABLES["ads"])
    new = itertools.count(100)
    while not store.stats()["storage"]["merge_running"]:
        keys = [*range(60), next(new)]  # most are soon dead, some stay
        table.assign(keys, np.ones((len(keys), table.dim), np.float32))
        table.flush()
    digest = table.digest()
    files.refuse(("sync_directory",), 2, errno.EIO)  # the log's, then the catalogue's
    with pytest.raises(StorageError):
        store.checkpoint("in flight")
    files.released.set()
    store.executor.storage.merges._thread.join()
    store.close()
    with open_store(files.root) as store:
        assert [store.table(name).digest() for name in store.tables()] in ([], [digest])


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["broken", "full"])
def test_commit_that_cannot_clean_up_is_done_or_fails_the_store(quick_path, code):
    """An error after the rename must not leave a store that goes on and denies its label."""
    files = RefusingFiles(quick_path / "store")
    store = open_store(files.root, files=files, checkpoints_keep=1)
    store.create_table("ads", **TABLES["ads"])
    table = store.create_table("visitors", **VISITORS)
    keys = np.arange(table.rows)
    while not list(files.root.glob("base/*")):
        table.assign(keys, np.ones((len(keys), table.dim), np.float32))
        store.checkpoint(f"with visitors {store.command}")
        store.executor.storage.merges.finish()
    store.drop_table("visitors")
    files.refuse(("remove",), 1, code)
    try:
        store.checkpoint("without")
    except StorageError:
        with pytest.raises(StoreClosedError):
            store.checkpoints()
    store.close()
    assert files.refusals
    with open_store(files.root, checkpoints_keep=1) as store:
        assert [c.label for c in store.checkpoints()] == ["without"]
        assert not list(files.root.glob("base/*"))

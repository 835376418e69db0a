"""Closing on a full or broken disk: the directory is free, and opens at a promised state.

Merges may be running, and may be installed by the close.
"""

import errno
from contextlib import suppress

import pytest

from embstore.errors import CapacityError, StorageError
from tests.faults.promises import check_content, content_of
from tests.faults.refusing import RefusingFiles
from tests.faults.training import DenseStore, open_store, train

SEED = 20260304
COMMITTED, COMMANDS = 44, 45  # the last commit of its own, and where the close finds the store


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("verb", ["write", "sync", "sync_directory", "rename", "create", "remove"])
def test_directory_is_free_after_a_close_that_failed(quick_path, verb, nth, code):
    files = RefusingFiles(quick_path / "store")
    dense = DenseStore()
    train(dense, SEED, COMMITTED)
    committed = content_of(dense)
    train(dense, SEED, COMMANDS - COMMITTED)
    store = open_store(files.root, files=files)
    train(store, SEED, COMMANDS)
    files.refuse((verb,), nth, code)
    with suppress(CapacityError, StorageError):
        store.close()
    store.close()
    with open_store(files.root) as store:
        check_content(store, committed, content_of(dense))

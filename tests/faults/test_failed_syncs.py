"""A sync that fails once is never taken for success, though the same sync succeeds later.

After the error the page cache holds clean pages that never reached the disk; so whatever the store
counts as durable must have been written again. A power cut at the end tells.
"""

import errno
import os
import shutil
from typing import Any

import pytest

from embstore.errors import StorageError, StoreClosedError
from embstore.storage.files import File
from tests.faults.disk import Disk, dropped, emptied, kept
from tests.faults.recording import Call, RecordingFiles
from tests.faults.sessions import Session, check_after_cut, record_into
from tests.faults.training import LOGGED

SEED = 20260304


class FailingSync(RecordingFiles):
    """Fails the nth sync of files with a suffix, and records that it did."""

    def __init__(self, root: Any, suffix: str, nth: int) -> None:
        super().__init__(root)
        self.failed = False
        self._suffix = suffix
        self._left = nth

    def _sync(self, file: File) -> None:
        if file.path.endswith(self._suffix):
            self._left -= 1
            if self._left == 0:
                self.failed = True
                self.calls.append(Call("failed_sync", file.path))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        super()._sync(file)


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "merging"])
@pytest.mark.parametrize("nth", [1, 3, 8])
@pytest.mark.parametrize("suffix", [".log", ".rows", ".ids", "CATALOGUE.new", ".commands"])
def test_what_a_failed_sync_lost_is_not_relied_on(quick_path, suffix, nth, settled):
    session = Session(SEED, LOGGED if suffix == ".commands" else {})
    files = FailingSync(quick_path / "recorded", suffix, nth)
    try:
        record_into(session, files, stretches=[40, 20], settled=settled)
    except (StorageError, StoreClosedError):
        assert files.failed
    assert files.failed, f"{suffix} was not synced {nth} times"
    disk = Disk()
    for call in session.calls:
        disk.apply(call)
    for choose in (dropped, emptied, kept):
        check_after_cut(session, disk, len(session.calls), choose, quick_path / "found")
        shutil.rmtree(quick_path / "found")

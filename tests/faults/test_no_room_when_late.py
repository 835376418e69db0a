"""No room where it was promised: at a sync, at a removal, in room that was set aside.

Delayed allocation, quotas and file systems that copy on write may refuse as late as that. It is too
late to refuse a command whole, so the store fails, and does not say that all is as it was.
"""

import errno
from pathlib import Path

import pytest

from tests.faults.refusing import RefusingFiles, endure, script

SEED = 20260304
COMMANDS = 45


@pytest.mark.parametrize(
    ("verb", "step"),
    [("write", 29), ("sync", 4), ("sync_directory", 4), ("truncate", 6), ("remove", 5)],
)
@pytest.mark.parametrize("turn", range(7))
def test_lack_of_room_is_no_silent_success(
    quick_path: Path, verb: str, step: int, turn: int
) -> None:
    files = RefusingFiles(quick_path / "store").refuse((verb,), 1 + turn * step, errno.ENOSPC)
    endure(quick_path / "store", files, SEED, script(SEED, COMMANDS), 1)

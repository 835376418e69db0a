"""A disk that is full from the nth call on, and has room again later: nothing changes, or is lost.

The nth call may be of a command, a commit, a merge, or of opening. What is refused is refused
whole: the digests of all tables are those from before, and the same call succeeds once there is
room.
"""

import pytest

from embstore.config import Limits
from tests.faults.promises import check_content, content_of
from tests.faults.refusing import NO_ROOM, FullDisk, endure, script
from tests.faults.training import LOGGED, TWO_LEVELS, DenseStore, open_store, train

SEED = 20260304
NO_MERGES = Limits(segment_bytes=4 * 4096, fold_segments=1000)
COMMANDS = 45


@pytest.mark.parametrize("options", [{}, LOGGED], ids=["checkpoint", "commands"])
@pytest.mark.parametrize("patience", [1, 4])
@pytest.mark.parametrize("nth", [*range(1, 12), *range(13, 60, 5), *range(61, 500, 29)])
def test_what_is_refused_changes_nothing(quick_path, nth, patience, options):
    path, steps = quick_path / "store", script(SEED, COMMANDS)
    files = FullDisk(path).fill(nth, NO_ROOM[nth % 2])
    assert endure(path, files, SEED, steps, patience, **options) == "went on"


@pytest.mark.parametrize("nth", [*range(2, 12, 3), *range(14, 400, 48)])
def test_what_is_refused_changes_nothing_in_two_levels(quick_path, nth):
    test_what_is_refused_changes_nothing(quick_path, nth, 4, TWO_LEVELS)


def test_merge_without_room_is_done_later(quick_path):
    files = FullDisk(quick_path / "store")
    dense = DenseStore()
    train(dense, SEED, COMMANDS)
    with open_store(files.root, files=files, limits=NO_MERGES) as store:
        train(store, SEED, COMMANDS)
    with open_store(files.root, files=files) as store:
        files.fill(1)
        store.executor.storage.merges.finish()
        stats = store.stats()["storage"]
        assert stats["merge_failures"] == 1 and not stats["folds"]
        assert "no room" in stats["merge_error"]
        check_content(store, content_of(dense))
        files.relent()
        train(store, SEED, COMMANDS)
        train(dense, SEED, COMMANDS)
        store.executor.storage.merges.finish()
        assert store.stats()["storage"]["folds"]
        check_content(store, content_of(dense))

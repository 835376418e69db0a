"""A disk that is full from the nth call on, and has room again later: nothing changes, or is lost.

The nth call may be of a command, a commit, a merge, or of opening. What is refused is refused
whole: the digests of all tables are those from before, and the same call succeeds once there is
room.
"""

from contextlib import suppress

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import CapacityError
from tests.faults.promises import check_content, content_of
from tests.faults.refusing import NO_ROOM, FullDisk, endure, script
from tests.faults.training import (
    LOGGED,
    TABLES,
    TWO_LEVELS,
    USERS,
    DenseStore,
    open_store,
    train,
)

SEED = 20260304
NO_MERGES = Limits(segment_bytes=4 * 4096, fold_segments=1000)
COMMANDS = 45
SMALL = {"cache_bytes": 40_000}
"""Of a cache that has not half of the rows of a table."""


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


@pytest.mark.parametrize(
    "options",
    [SMALL, SMALL | LOGGED, TWO_LEVELS],
    ids=["checkpoint", "commands", "two-levels"],
)
@pytest.mark.parametrize("name", ["ads", "users/by-id"])
def test_every_row_is_read_on_a_full_disk(quick_path, name, options):
    """Rows that are not in the cache too, though all rows there are dirty, and none can leave."""
    files, dense = FullDisk(quick_path / "store"), DenseStore()
    keys = USERS if TABLES[name].get("key_space") else np.arange(900)
    with open_store(files.root, files=files, **options) as store:
        for one in (store, dense):
            one.create_table(name, **TABLES[name])
        table, expected = store.table(name), dense.table(name)
        rng = np.random.default_rng(SEED)
        for _ in range(12):
            some = rng.choice(keys, 60, replace=False)
            gradients = rng.standard_normal((60, table.dim)).astype(np.float32)
            table.update(some, gradients)
            expected.update(some, gradients)
        files.fill(1)
        refused = 0
        for low in 3 * [*range(0, len(keys), 50)]:
            some = keys[low : low + 50]
            with suppress(CapacityError):  # in the end there is no clean row
                table.put_rows(some, *table.read_rows(some), 0)
                continue
            refused += 1
        assert refused
        assert table.lookup(keys).tobytes() == expected.lookup(keys).tobytes()
        for key in keys[::9]:
            assert table.lookup([key]).tobytes() == expected.lookup([key]).tobytes()
        bags = np.arange(0, len(keys) + 1, 10)
        pooled = table.lookup_pooled(keys, bags, mode="sum")
        assert pooled.tobytes() == expected.lookup_pooled(keys, bags, mode="sum").tobytes()
        digest = table.digest()
        store.check_integrity()
        files.relent()
        assert table.lookup(keys).tobytes() == expected.lookup(keys).tobytes()
        table.update(keys[:60], gradients)
        assert table.digest() != digest


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

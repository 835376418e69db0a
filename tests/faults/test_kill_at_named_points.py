"""kill -9 exactly at a named point of a commit, a fold or a compaction, then on with the work."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from embstore.storage.files import Files
from tests.faults.forks import Forks
from tests.faults.promises import check_content, commands_promised, content_of
from tests.faults.training import (
    COMMANDS_PER_LABEL,
    LOGGED,
    TWO_LEVELS,
    DenseStore,
    dirty_by_level,
    labels_of,
    open_store,
    stir,
    train,
)

SEED = 20260304
POINTS = (
    "commit:synced",
    "commit:renamed",
    "fold:rows",
    "fold:synced",
    "base_merge:rows",
    "base_merge:synced",
    "compaction:records",
    "compaction:synced",
    "merge:renamed",
)
POINTS_OF_THE_LOG = ("commands:written", "commands:synced", "commands:removed")
IN_REPLAY = "replay:command"
COMMANDS = 7 * COMMANDS_PER_LABEL // 2 - 1
"""As many as there may be since the last commit: the next one commits."""


class CrashingFiles(Files):
    """Ends the process when a point is reached for the nth time, wherever its other threads are."""

    def __init__(self, root: str, point: str, nth: int) -> None:
        super().__init__(root)
        self._last = (point, nth)
        self._reached: Counter[str] = Counter()

    def reached(self, point: str) -> None:
        self._reached[point] += 1
        if (point, self._reached[point]) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def train_until_crash(
    reports: Any, path: str, point: str, nth: int, options: dict[str, Any]
) -> None:
    """The child: train, and report commits, until the point is reached."""
    store = open_store(path, files=CrashingFiles(path, point, nth), **options)
    for n in range(600):
        train(store, SEED, 1, lambda word, n: reports.send((word, n)), every=bool(options))
        stir(store, SEED)
        if n % 4 == 0:  # else merges run beside the training
            store.executor.storage.merges.finish()


def train_and_crash(reports: Any, path: str, commands: int, options: dict[str, Any]) -> None:
    """The child: train, report commands, and end when so many are acknowledged."""
    store = open_store(path, **options)
    train(store, SEED, commands, lambda word, n: reports.send((word, n)), every=True)
    os.kill(os.getpid(), signal.SIGKILL)


def expected_commands(point: str, reports: list[tuple[str, int]]) -> set[int]:
    """Return where the store may be. The points of a commit say which side of the rename it was."""
    either = commands_promised(reports, 0)
    if point == "commit:synced":
        return {min(either)}
    return {max(either)} if point == "commit:renamed" else either


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", POINTS)
def test_store_opens_as_the_point_says_and_goes_on(tmp_path, forks, point, nth):
    crash_and_go_on(tmp_path, forks, point, nth, {})


@pytest.mark.parametrize(
    ("options", "nth"), [(LOGGED, 1), (LOGGED, 4), (TWO_LEVELS, 1)], ids=["1", "4", "two levels"]
)
@pytest.mark.parametrize("point", [*POINTS, *POINTS_OF_THE_LOG])
def test_no_command_is_lost_where_they_are_logged(tmp_path, forks, point, nth, options):
    crash_and_go_on(tmp_path, forks, point, nth, options)


def test_rows_of_both_levels_are_dirty_when_commits_begin(tmp_path):
    seen = 0
    with open_store(tmp_path, **TWO_LEVELS) as store:
        for n in range(1, 40):
            seen += n % COMMANDS_PER_LABEL in (0, 4) and min(dirty_by_level(store)) > 0
            train(store, SEED, 1)
            stir(store, SEED)
    assert seen > 3


@pytest.mark.parametrize(
    ("options", "nth"), [(LOGGED, 1), (LOGGED, 2), (TWO_LEVELS, 2)], ids=["1", "2", "two levels"]
)
def test_a_replay_that_is_cut_short_is_done_again(tmp_path, forks, nth, options):
    child = forks.start(train_and_crash, str(tmp_path), COMMANDS, options)
    assert child.wait() == -signal.SIGKILL
    reports = child.remaining()
    for _ in range(2):
        child = forks.start(train_until_crash, str(tmp_path), IN_REPLAY, nth, options)
        assert child.wait() == -signal.SIGKILL
        assert not child.remaining(), "it ended before the store was open"
    check_and_go_on(tmp_path, reports, commands_promised(reports, 0), options)


def crash_and_go_on(
    tmp_path: Path, forks: Forks, point: str, nth: int, options: dict[str, Any]
) -> None:
    child = forks.start(train_until_crash, str(tmp_path), point, nth, options)
    assert child.wait() == -signal.SIGKILL, f"{point} was not reached {nth} times"
    reports = child.remaining()
    expected = commands_promised(reports, 0) if options else expected_commands(point, reports)
    check_and_go_on(tmp_path, reports, expected, options)


def check_and_go_on(
    tmp_path: Path, reports: list[Any], expected: set[int], options: dict[str, Any]
) -> None:
    dense = DenseStore()
    with open_store(tmp_path, **options) as store:
        assert store.command in expected, reports[-2:]
        is_labelled = f"command-{store.command}" in labels_of(store)
        train(dense, SEED, store.command, label_last=is_labelled)
        check_content(store, content_of(dense))
        train(store, SEED, 20)
        train(dense, SEED, 20)
        store.executor.storage.merges.finish()
        check_content(store, content_of(dense))
    with open_store(tmp_path) as store:
        check_content(store, content_of(dense))

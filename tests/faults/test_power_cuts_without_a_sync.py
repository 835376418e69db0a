"""The test of the power cuts can fail: with one kind of sync left out, it does.

Each kind that the storage relies on is taken out of the record of the same session; then some power
cut must find a store that is not what was promised, or that does not go on.
"""

import shutil
from pathlib import Path

import pytest

from embstore.errors import EmbstoreError
from tests.faults.disk import Choose, Disk, dropped, emptied
from tests.faults.sessions import Session, check_after_cut, check_goes_on, record
from tests.faults.training import LOGGED

SEED = 20260304


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One session with commits, folds, compactions and drops."""
    path = tmp_path_factory.mktemp("recorded")
    return record(path / "store", SEED, stretches=[30, 25], settled=True)


@pytest.fixture(scope="module")
def logged_session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The same, where every command is durable."""
    path = tmp_path_factory.mktemp("recorded")
    return record(path / "store", SEED, stretches=[30, 25], settled=True, **LOGGED)


def is_kept_after(session: Session, disk: Disk, calls: int, choose: Choose, path: Path) -> bool:
    """Say whether a power cut leaves a store as promised, that goes on."""
    try:
        found = check_after_cut(session, disk, calls, choose, path)
        if found.command:
            check_goes_on(session, path, found)
    except (AssertionError, EmbstoreError):
        return False
    finally:
        shutil.rmtree(path)
    return True


@pytest.mark.parametrize(
    ("verb", "suffix"),
    [
        pytest.param("sync", ".log", id="log-segment"),
        pytest.param("sync", "CATALOGUE.new", id="catalogue"),
        pytest.param("sync", ".rows", id="base-rows"),
        pytest.param("sync", ".ids", id="ids"),
        pytest.param("sync", "store.json.new", id="identity"),
        pytest.param("sync_directory", "log", id="log-directory"),
        pytest.param("sync_directory", "base", id="base-directory"),
        pytest.param("sync_directory", "ids", id="ids-directory"),
    ],
)
def test_a_missing_sync_is_noticed(quick_path, session, verb, suffix):
    check_it_is_noticed(quick_path, session, verb, suffix)


@pytest.mark.parametrize(
    ("verb", "suffix"), [("sync", ".commands"), ("sync_directory", "commands")]
)
def test_a_missing_sync_of_the_command_log_is_noticed(quick_path, logged_session, verb, suffix):
    check_it_is_noticed(quick_path, logged_session, verb, suffix)


def check_it_is_noticed(quick_path: Path, session: Session, verb: str, suffix: str) -> None:
    disk = Disk()
    for calls, call in session.without(verb, suffix):
        disk.apply(call)
        if calls in session.since or call.verb in ("rename", "remove"):
            for choose in (dropped, emptied):
                if not is_kept_after(session, disk, calls, choose, quick_path / "found"):
                    return
    pytest.fail(f"no power cut noticed that no {verb} of {suffix} was done")

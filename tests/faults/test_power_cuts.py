"""A power cut after any file call: the store opens at what it had promised, and goes on.

kill -9 leaves the page cache, so it does not notice a missing fsync; here what was not synced is
lost, emptied or torn. One session does every merge that is due, and is cut after each call that is
no write and after some that are; in the others merges run beside the training, and cuts are by
chance. After each cut the store is opened, killed, and opened again.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.disk import Choose, Disk, dropped, emptied, kept, torn
from tests.faults.sessions import Session, check_after_cut, check_goes_on, record
from tests.faults.training import LOGGED, MANY_BASES, TWO_LEVELS, generator

SEED = 20260304
SETTLED_SEED = 20260323
"""Of a session with folds and several compactions."""
LOG_SEED = 20260305
"""Of one of which a sound store was refused, since a crash had left a header without a record."""
STRETCHES = [33, 8, 20]
SHARE = 3  # each of the three choices is made after other calls; in `make soak` after all
EVERY_WRITE = 5  # one in so many is cut after, in the middle of a stretch of writes
EVERY_GOING_ON = 40


def cut(session: Session, disk: Disk, calls: int, choices: list[Choose], path: Path) -> None:
    """Cut the power once for each of `choices`; after some cuts go on."""
    for choose in choices:
        found = check_after_cut(session, disk, calls, choose, path)
        if calls % EVERY_GOING_ON == 0:
            check_goes_on(session, path, found)
        shutil.rmtree(path)


CHOICES: dict[str, Callable[[int], Choose]] = {
    "dropped": lambda calls: dropped,
    "emptied": lambda calls: emptied,
    "torn": lambda calls: torn([SEED, calls]),
}
"""What becomes of writes that were not synced, by the number of calls before the cut."""


@pytest.mark.parametrize("options", [{}, LOGGED], ids=["checkpoint", "commands"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_call_may_be_the_last(quick_path, choice, options, pytestconfig):
    share = SHARE if pytestconfig.getoption("soak") == 1 else 1
    place = list(CHOICES).index(choice) % share
    path = quick_path / "recorded"
    session = record(path, SETTLED_SEED, stretches=STRETCHES, settled=True, **options)
    assert min(session.merges.values()) > 2, "expected folds and compactions in the session"
    disk = Disk()
    for calls, call in enumerate(session.calls, 1):
        disk.apply(call)
        if (call.verb != "write" or calls % EVERY_WRITE == 0) and calls % share == place:
            cut(session, disk, calls, [CHOICES[choice](calls)], quick_path / "found")


def test_every_call_of_the_command_log_may_be_the_last(quick_path):
    """Between the header of a segment and its first record, too."""
    path = quick_path / "recorded"
    session = record(path, LOG_SEED, stretches=STRETCHES, settled=True, **LOGGED)
    disk = Disk()
    for calls, call in enumerate(session.calls, 1):
        disk.apply(call)
        if call.path.startswith("commands/"):
            cut(session, disk, calls, [torn([SEED, calls])], quick_path / "found")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"policy": "lfu"}, id="lfu"),
        pytest.param({"policy": "lfu"} | LOGGED, id="commands"),
        pytest.param({"limits": MANY_BASES, "cache_bytes": 150_000}, id="many-bases"),
        pytest.param(TWO_LEVELS, id="two-levels"),
    ],
)
def test_cuts_while_merges_run(quick_path, options):
    rng = generator(SEED)
    session = record(
        quick_path / "recorded", SEED + 1, stretches=[20, 40, 20], settled=False, **options
    )
    disk = Disk()
    for calls, call in enumerate(session.calls, 1):
        disk.apply(call)
        if rng.random() < 0.15:
            cut(session, disk, calls, [torn([SEED, calls]), kept], quick_path / "found")

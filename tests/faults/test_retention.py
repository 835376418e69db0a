"""A kill or a power cut at any point of dropping or protecting a label.

Afterwards a label is there, and restored to the bit, or it is not there: never a half.
"""

import os
import shutil
import signal
from itertools import pairwise
from typing import Any

import pytest

from tests.conformance.backends import UnsyncedFiles
from tests.faults.disk import Disk
from tests.faults.promises import content_of
from tests.faults.recording import RecordingFiles
from tests.faults.test_kill_at_named_points import CrashingFiles
from tests.faults.test_power_cuts import CHOICES, SHARE
from tests.faults.training import LOGGED, labels_of, open_store, run_command

SEED = 20_261_133
"""Of a list of commands without a restore."""
LABELS = ("a", "b", "c", "d")
EVERY_RESTORED = 4
"""After one in so many cuts each label is restored, too."""
STEPS = (
    ("b", "protected"),
    ("a", "dropped"),
    ("d", "dropped"),
    ("b", "routine"),
    ("c", "dropped"),
    ("b", "dropped"),
)
KEPT = {"checkpoints_keep": 9}


def make(store: Any) -> dict[str, Any]:
    """Train, with labels; return the digests of each, and of the head that a crash leaves."""
    found = {}
    for n in range(24):
        run_command(store, SEED)
        store.flush()
        if n % 6 == 5:
            store.checkpoint(LABELS[n // 6])
            store.executor.storage.merges.finish()
            found[LABELS[n // 6]] = content_of(store).tables
    found["head"] = found["d"]
    return found


def states() -> list[dict[str, bool]]:
    """Return the labels before each step, and after the last: whether each is protected."""
    found = [dict.fromkeys(LABELS, False)]
    for label, retention in STEPS:
        after = found[-1] | {label: retention == "protected"}
        if retention == "dropped":
            del after[label]
        found.append(after)
    return found


def labels(store: Any) -> dict[str, bool]:
    return {one.label: one.protected for one in store.checkpoints()}


def check(store: Any, wanted: dict[str, Any], *, restored: bool) -> None:
    """Check that the head is as it was, and each label, by going back to it."""
    store.check_integrity()
    assert content_of(store).tables == wanted["head"]
    if not restored:
        return
    for label in labels_of(store):
        store.set_retention(label, "routine")
    for label in reversed(labels_of(store)):
        store.restore(label)
        assert content_of(store).tables == wanted[label], label
    store.check_integrity()


@pytest.mark.parametrize("options", [{}, LOGGED], ids=["checkpoint", "commands"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_call_may_be_the_last(quick_path, choice, options, pytestconfig):
    share = SHARE if pytestconfig.getoption("soak") == 1 else 1
    place = list(CHOICES).index(choice) % share
    files = RecordingFiles(quick_path / "recorded")
    with open_store(files.root, files=files, **KEPT, **options) as store:
        wanted, begun = make(store), []
        for label, retention in STEPS:
            begun.append(len(files.calls))
            store.set_retention(label, retention)
            store.executor.storage.merges.finish()
        end = len(files.calls)
    disk, cuts, path = Disk(), 0, quick_path / "found"
    possible = list(pairwise(states()))
    for calls, call in enumerate(files.calls[:end], 1):
        disk.apply(call)
        if calls <= begun[0] or calls % share != place:
            continue
        step = sum(calls > first for first in begun) - 1
        disk.write_to(path, CHOICES[choice](calls))
        with open_store(path, files=UnsyncedFiles(path), **KEPT, **options) as store:
            assert labels(store) in possible[step], (call, STEPS[step])
            check(store, wanted, restored=cuts % EVERY_RESTORED == 0)
        shutil.rmtree(path)
        cuts += 1
    assert cuts * share > 4 * len(STEPS)


def retain_until_killed(reports: Any, path: str, point: str, nth: int, options: Any) -> None:
    """The child."""
    with open_store(path, files=CrashingFiles(path, point, nth), **KEPT, **options) as store:
        reports.send(make(store))
        for label, retention in STEPS:
            store.set_retention(label, retention)


@pytest.mark.parametrize("options", [{}, LOGGED], ids=["checkpoint", "commands"])
@pytest.mark.parametrize("nth", range(1, len(STEPS) + 1))
@pytest.mark.parametrize("point", ["retention:decided", "retention:renamed"])
def test_a_kill_is_before_the_step_or_after_it(quick_path, forks, point, nth, options):
    child = forks.start(retain_until_killed, str(quick_path), point, nth, options)
    assert child.wait() == -signal.SIGKILL
    (wanted,) = child.remaining()
    with open_store(quick_path, **KEPT, **options) as store:
        assert labels(store) == states()[nth - (point == "retention:decided")]
        check(store, wanted, restored=True)
    assert not os.path.exists(quick_path / "CATALOGUE.new")

"""A window of steps, during which the store commits and merges.

The time of a step is that from its beginning to the beginning of the next step, so it includes work
that the step leaves to the device. After half of the steps a thread commits, as the store does by
itself: slices of dirty rows are logged between calls, and files are synced. Merges follow, which
calls start and install. The window ends when a commit and a merge have ended, or when its time is
up; the figures include how many have ended. A merge that has not ended continues in the next
window. **Quiet** steps are those without a commit and without a merge.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.gpu.machine import median
from tests.bench.gpu.stores import DeviceStore, since

LEAST_STEPS = 5
UNDISTURBED = 1 / 3
"""Part of a window's time after which the commit begins, however few steps there were."""


class Upkeep:
    """The commits and merges of a store since this was made."""

    def __init__(self, store: DeviceStore) -> None:
        self._commits = store.store.executor.commits
        self._merges = store.engine.storage.merges
        self._before = self._counts()

    def _counts(self) -> tuple[int, int]:
        merges = self._merges
        return self._commits.count, merges.folds + merges.base_merges + merges.compactions

    @property
    def is_under_way(self) -> bool:
        """Whether a commit or a merge runs now."""
        return bool(self._commits.is_running or self._merges.running)

    def ended(self) -> dict[str, int]:
        """Return how many commits and merges have ended."""
        commits, merges = np.subtract(self._counts(), self._before).tolist()
        return {"commits": commits, "merges": merges}


def take(store: DeviceStore, step: Callable[[], None], steps: int, most_s: float) -> dict[str, Any]:
    """Take so many steps, and more until a commit and a merge have ended, in at most so many
    seconds; return the figures of a step."""
    store.wait()
    before, upkeep = store.sums(), Upkeep(store)
    spent: list[float] = []
    quiet: list[float] = []
    has_begun = False
    begin = last = time.perf_counter()
    while _goes_on(len(spent), last - begin, steps, most_s, upkeep):
        if not has_begun and (2 * len(spent) >= steps or last - begin > UNDISTURBED * most_s):
            store.begin_commit()
            has_begun = True
        was_quiet = not upkeep.is_under_way
        step()
        now = time.perf_counter()
        spent.append(1e3 * (now - last))
        if was_quiet and not upkeep.is_under_way:
            quiet.append(spent[-1])
        last = now
    ended, after = upkeep.ended(), store.sums()
    sums = {name: since(before[name], found, len(spent)) for name, found in after.items()}
    figures = _figures(spent, quiet)
    disturbed = figures["highest_to_median"] if all(ended.values()) else None
    return figures | {"disturbed_to_median": disturbed} | ended | sums


def _goes_on(taken: int, spent_s: float, steps: int, most_s: float, upkeep: Upkeep) -> bool:
    if taken < min(LEAST_STEPS, steps):
        return True
    return spent_s < most_s and (taken < steps or not all(upkeep.ended().values()))


def _figures(spent: list[float], quiet: list[float]) -> dict[str, Any]:
    ms = median(spent)
    return {
        "steps": len(spent),
        "ms": ms,
        "quartiles_ms": np.percentile(spent, [25, 75]).tolist(),
        "highest_ms": max(spent),
        "highest_to_median": max(spent) / ms,
        "quiet_steps": len(quiet),
        "quiet_ms": median(quiet) if quiet else None,
        "quiet_highest_ms": max(quiet, default=None),
    }

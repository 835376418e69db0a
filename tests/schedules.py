"""How many rows a cache must read for a trace of steps: plain simulators of schedules.

At each step's turn the rows of the step that are not in the cache are read, and others make room:
first those that none of the next `known` steps uses, this one included, by the policy; then those
whose next use is farthest. `known` = 0 is the policy alone; all steps, Belady's OPT, which no
schedule can beat.

    lru   the row used longest ago leaves first
    rank  the row of the lowest level leaves first, among equals the one used longest ago
"""

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]


def rows_read(steps: list[Keys], slots: int, known: int, levels: Keys | None = None) -> int:
    """Return how many rows are read.

    Parameters
    ----------
    steps : the unique keys of each step, from 0 to below some bound
    slots : of the cache, which is empty at first; more than a step's keys
    levels : of all keys; None: the policy is lru
    """
    count = 1 + max(int(keys.max()) for keys in steps)
    levels = np.zeros(count, np.int64) if levels is None else levels
    never = len(steps) + known
    later = _next_uses(steps, count, never)
    used, next_use = np.full(count, -1), np.full(count, never)
    resident, read = np.zeros(count, bool), 0
    for now, keys in enumerate(steps):
        missing = int(np.count_nonzero(~resident[keys]))
        leaving = int(np.count_nonzero(resident)) + missing - slots
        if leaving > 0:
            may_leave = resident.copy()
            may_leave[keys] = False
            rows = np.flatnonzero(may_leave)
            is_known = next_use[rows] < now + known
            farthest = np.where(is_known, -next_use[rows], 0)
            by_policy = np.where(is_known, 0, levels[rows])
            order = np.lexsort((used[rows], by_policy, farthest, is_known))
            resident[rows[order[:leaving]]] = False
        read += missing
        resident[keys], used[keys], next_use[keys] = True, now, later[now]
    return read


def _next_uses(steps: list[Keys], count: int, never: int) -> list[Keys]:
    """Return the next step that uses each key of a step, for each step."""
    following, found = np.full(count, never), []
    for now in reversed(range(len(steps))):
        found.append(following[steps[now]])
        following[steps[now]] = now
    return found[::-1]


def traces(steps: int, draws: int, seed: int) -> dict[str, list[Keys]]:
    """Return traces of four kinds, each step's keys unique: Zipf's law with exponent 1.05 alone;
    drifting; beside a scan; and beside a loop of fifteen steps."""
    rng = np.random.default_rng(seed)
    rows, part = 200 * draws, draws // 3
    bounds = np.cumsum(1 / np.arange(1, rows + 1) ** 1.05)

    def zipf(count: int) -> Keys:
        return np.searchsorted(bounds, rng.random(count) * bounds[-1])

    scan, loop = rows + np.arange(steps * part), rows + np.arange(15 * part)
    return {
        "steady": [np.unique(zipf(draws)) for _ in range(steps)],
        "drifting": [np.unique((zipf(draws) + n * draws // 25) % rows) for n in range(steps)],
        "scanning": [
            np.unique(np.r_[zipf(draws // 2), scan[n * part : (n + 1) * part]])
            for n in range(steps)
        ],
        "looping": [
            np.unique(np.r_[zipf(draws // 4), np.roll(loop, -n * part)[:part]])
            for n in range(steps)
        ],
    }

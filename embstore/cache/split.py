"""Splitting a budget between pools so that, by the pools' miss curves, the fewest lookups miss.

The budget is cut into `UNITS` equal parts. Pools are added one after the other. After each pool,
the fewest misses of all pools so far are computed for every number of units:

    fewest[p][u] = min over v of fewest[p - 1][u - v] + misses of pool p with v units

This finds the best split also for curves with steps, which repeated scans produce. A greedy search,
which always gives the next unit to the pool that gains most from one unit, would never get past a
step.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNITS = 64


def best_split(misses: Sequence[Floats], least: Sequence[int]) -> list[int]:
    """Return the units of each pool; their sum is `UNITS`.

    Parameters
    ----------
    misses : for each pool an array (UNITS + 1,): its misses with 0, 1, ... units
    least : for each pool the least number of units that it gets; the sum is at most `UNITS`
    """
    fewest, choices = np.full(UNITS + 1, np.inf), []
    fewest[0] = 0
    for of_pool, low in zip(misses, least, strict=True):
        totals = np.full((UNITS + 1, UNITS + 1), np.inf)  # [all pools so far, this pool]
        for own in range(low, UNITS + 1):
            totals[own:, own] = fewest[: UNITS + 1 - own] + of_pool[own]
        choices.append(np.argmin(totals, axis=1))
        fewest = np.min(totals, axis=1)
    units, left = [], UNITS
    for choice in reversed(choices):
        units.append(int(choice[left]))
        left -= units[-1]
    return units[::-1]

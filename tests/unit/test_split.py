"""The best split of a budget, against all splits there are."""

import itertools

import numpy as np

from embstore.cache.split import UNITS, best_split
from tests.unit.small_stores import generator


def falling(rng):
    """Return misses that never rise, with steps."""
    return np.sort(rng.integers(0, 30, UNITS + 1))[::-1].astype(float)


def test_no_split_misses_less():
    rng = generator(3)
    for _ in range(20):
        misses, least = [falling(rng) for _ in range(3)], rng.integers(1, 15, 3).tolist()
        units = best_split(misses, least)
        assert sum(units) == UNITS
        assert all(u >= low for u, low in zip(units, least, strict=True))
        found = sum(m[u] for m, u in zip(misses, units, strict=True))
        least_of_all = min(
            misses[0][a] + misses[1][b] + misses[2][UNITS - a - b]
            for a, b in itertools.product(range(least[0], UNITS), range(least[1], UNITS))
            if UNITS - a - b >= least[2]
        )
        assert found == least_of_all


def test_a_step_at_the_end_is_reached():
    """What gains nothing with the next unit, and everything with the last: as a loop does."""
    loop, skewed = np.full(UNITS + 1, 100.0), np.linspace(20, 0, UNITS + 1)
    loop[40:] = 0
    assert best_split([loop, skewed], [1, 1])[0] == 40

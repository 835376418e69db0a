"""The loops of cache simulations against plain Python: stack depths, and scores with ageing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.score import COUNT_UP
from embstore_server.sizing.simulate_kernels import simulate_scores, stack_depths

KEYS = 12
CALLS = st.lists(st.lists(st.integers(0, KEYS - 1), unique=True, max_size=6), max_size=25)
WEIGHTS = st.lists(st.integers(1, 3), min_size=KEYS, max_size=KEYS)


def events(calls):
    """Return bounds and ids of calls."""
    bounds = np.cumsum([0, *map(len, calls)])
    return bounds, np.array([key for call in calls for key in call], np.int64)


@settings(max_examples=300)
@given(CALLS, WEIGHTS)
def test_depths_are_those_of_sets(calls, weights):
    bounds, ids = events(calls)
    above, beside = np.empty_like(ids), np.empty_like(ids)
    last = np.full(KEYS, -1, np.int64)
    stack_depths(bounds, ids, np.array(weights), last, above, beside)
    expected, last_used = [], {}
    for number, call in enumerate(calls):
        for key in call:
            before = last_used.get(key)
            if before is None:
                expected.append((-1, sum(weights[k] for k in last_used)))
                continue
            since = {k for k, used in last_used.items() if used > before}
            tied = {k for k, used in last_used.items() if used == before}
            expected.append((sum(weights[k] for k in since), sum(weights[k] for k in tied)))
        last_used |= dict.fromkeys(call, number)
    assert list(zip(above.tolist(), beside.tolist(), strict=True)) == expected
    assert last.tolist() == [last_used.get(key, -1) for key in range(KEYS)]


def test_a_key_heavier_than_the_cache_is_no_endless_loop():
    result, keys = np.empty(2, np.int64), np.empty((2, 4), np.int64)
    ones = np.ones(2, np.int64)
    simulate_scores(
        np.array([0, 1, 2, 4]), np.array([0, 0, 0, 1]), np.ones(4, np.int64), np.array([9, 1]),
        ones, ones[:0], 4, COUNT_UP, 0, keys, result,
    )  # fmt: skip
    assert result.tolist() == [2, 18]

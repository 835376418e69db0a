"""Misses by size, as a sample measures them: of a loop that has ended, ever fewer."""

import numpy as np

from embstore.cache.reuse import Reuse

CALL_KEYS = 500


def zipf(rng, rows, skew, count):
    shares = np.cumsum(np.arange(1, rows + 1) ** -skew)
    return rng.permutation(rows)[np.searchsorted(shares / shares[-1], rng.random(count))]


def test_what_was_measured_fades():
    reuse = Reuse(10_000)
    for low in range(0, 100_000, CALL_KEYS):
        reuse.note(3, np.arange(low, low + CALL_KEYS) % 3_000)
        reuse.end_call()
    before = reuse.curve()
    for _ in range(20):
        for low in range(0, 20_000, CALL_KEYS):
            reuse.note(3, zipf(np.random.default_rng(low), 500, 1.0, CALL_KEYS))
        reuse.end_call()
        reuse.fade()
    after = reuse.curve()
    assert before.at(2_000.0) / before.lookups > 0.9
    assert after.at(2_000.0) / after.lookups < 0.1

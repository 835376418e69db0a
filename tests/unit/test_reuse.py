"""Misses by size, as a sample measures them: of the keys that come again, and of late."""

import numpy as np

from embstore.cache.reuse import Reuse
from tests.unit.small_stores import generator

CALL_KEYS = 500


def zipf(rng, rows, skew, count):
    shares = np.cumsum(np.arange(1, rows + 1) ** -skew)
    return rng.permutation(rows)[np.searchsorted(shares / shares[-1], rng.random(count))]


def test_keys_that_come_once_do_not_use_up_the_sample():
    """A scan without an end: the sample stays as large a part of the keys."""
    rng = generator(6)
    reuse = Reuse(1_000, keys_max=1 << 12)
    weights = []
    for call in range(400):
        hot = zipf(np.random.default_rng(1), 2_000, 1.0, 250)[rng.permutation(250)]
        reuse.note(0, np.concatenate([hot, 10_000 + call * 250 + np.arange(250)]))
        reuse.end_call()
        weights.append(reuse.weight)
    assert weights[-1] == weights[50] <= 4


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

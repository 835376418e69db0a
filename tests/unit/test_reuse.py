"""Curves of misses by size, as measured by a sample, are those that LRU caches have."""

from collections import OrderedDict

import numpy as np
import pytest

from embstore.cache.reuse import Reuse
from tests.unit.small_stores import generator, show

SIZES = np.array([200, 500, 1_000, 2_000, 5_000, 10_000])
CALL_KEYS = 500


def zipf(rng, rows, skew, count):
    shares = np.cumsum(np.arange(1, rows + 1) ** -skew)
    return rng.permutation(rows)[np.searchsorted(shares / shares[-1], rng.random(count))]


def looped(rng, rows, count):
    return np.arange(count) % rows


def mixed(rng, rows, count):
    keys = zipf(rng, rows, 0.9, count)
    keys[::3] = rows + np.arange(len(keys[::3]))  # a scan
    return keys


TRACES = {
    "zipf": lambda rng: zipf(rng, 30_000, 1.0, 400_000),
    "flat": lambda rng: rng.integers(0, 6_000, 200_000),
    "loop": lambda rng: looped(rng, 3_000, 100_000),
    "zipf and a scan": lambda rng: mixed(rng, 20_000, 300_000),
}


def lru_misses(keys, size):
    cache, misses = OrderedDict(), 0
    for key in keys.tolist():
        if key in cache:
            cache.move_to_end(key)
        else:
            misses += 1
            cache[key] = None
            if len(cache) > size:
                cache.popitem(last=False)
    return misses


def measured(keys, **options):
    reuse = Reuse(int(SIZES[-1]), **options)
    for low in range(0, len(keys), CALL_KEYS):
        reuse.note(3, keys[low : low + CALL_KEYS])
        reuse.end_call()
    return reuse


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("keys_max", [1 << 15, 1 << 13])
def test_a_curve_is_that_of_lru(name, keys_max):
    keys = TRACES[name](generator(5))
    reuse = measured(keys, keys_max=keys_max)
    found = reuse.curve().at(SIZES) / len(keys)
    expected = np.array([lru_misses(keys, size) for size in SIZES.tolist()]) / len(keys)
    show(f"{name}: a key for {reuse.weight}: {np.round(100 * (found - expected), 1)} points")
    assert np.abs(found - expected).max() < 0.03
    assert reuse.curve().lookups == len(keys)


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
    rng = generator(8)
    reuse = measured(TRACES["loop"](rng))
    before = reuse.curve()
    for _ in range(20):
        for low in range(0, 20_000, CALL_KEYS):
            reuse.note(3, zipf(np.random.default_rng(low), 500, 1.0, CALL_KEYS))
        reuse.end_call()
        reuse.fade()
    after = reuse.curve()
    assert before.at(2_000.0) / before.lookups > 0.9
    assert after.at(2_000.0) / after.lookups < 0.1

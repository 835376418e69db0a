"""Counting by key: exact against a Counter, and the bounds of the sketch beyond that."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.hotness.counter import KeyCounter

SEED = 67


def add_all(counter, batches):
    """Add batches of keys, or of (key, count); return the true counts."""
    true = Counter()
    for batch in batches:
        if batch and isinstance(batch[0], tuple):
            keys, counts = np.array(batch, np.int64).T
            counter.add(keys, counts)
            for key, count in batch:
                true[key] += count
        else:
            counter.add(np.array(batch, np.int64))
            true.update(batch)
    return true


def held(counter):
    keys, counts = counter.copied().items()
    assert (keys[1:] > keys[:-1]).all()
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def check_bounds(counter, true):
    """What a sketch promises, of every key."""
    found = held(counter)
    assert len(found) == counter.distinct
    assert counter.accesses == true.total() >= sum(found.values())
    for key, count in true.items():
        assert count - counter.error <= found.get(key, 0) <= count
    assert found.keys() <= true.keys()
    assert all(key in found for key, count in true.items() if count > counter.error)


any_key = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)
plain = st.lists(any_key, max_size=40)
weighted = st.lists(st.tuples(any_key, st.integers(1, 2**40) | st.integers(1, 5)), max_size=40)
batches_of_both = st.lists(plain | weighted, max_size=8)


@given(batches_of_both)
def test_counts_are_those_of_a_dictionary(batches):
    counter = KeyCounter()
    true = add_all(counter, batches)
    assert held(counter) == true
    assert (counter.is_exact, counter.error) == (True, 0)
    assert (counter.distinct, counter.accesses) == (len(true), true.total())


@given(batches_of_both, st.integers(2, 12))
def test_a_sketch_keeps_its_bounds(batches, keys_max):
    counter = KeyCounter(keys_max)
    true = add_all(counter, batches)
    check_bounds(counter, true)
    assert counter.distinct <= keys_max
    assert counter.is_exact == (len(true) <= keys_max)
    assert counter.error <= 2 * counter.accesses / keys_max


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(1.05, 3), st.integers(50, 5000))
def test_a_sketch_of_skewed_keys_keeps_its_bounds(seed, skew, keys_max):
    random = np.random.default_rng(seed)
    counter = KeyCounter(keys_max)
    true = add_all(counter, [random.zipf(skew, 4000).tolist() for _ in range(5)])
    check_bounds(counter, true)


def test_counts_are_exact_up_to_the_last_key_that_fits():
    counter = KeyCounter(5000)
    counter.add(np.arange(5000))
    counter.add(np.arange(5000))
    assert counter.is_exact
    counter.add(np.array([5000]))
    assert (counter.is_exact, counter.error, counter.distinct) == (False, 2, 1)
    assert counter.accesses == 10_001


def test_the_median_of_a_large_table_is_that_of_a_sample():
    """More than _SAMPLED_PLACES: counts 1, 2 and 3 of 60,000 keys each, so the median is 2."""
    counter = KeyCounter(180_000)
    for count in (1, 2, 3):
        keys = np.arange(60_000) * 3 + count
        counter.add(keys, np.full(60_000, count))
    assert counter.is_exact
    counter.add(np.array([0]))
    assert (counter.error, counter.distinct) == (2, 60_001)
    assert counter.accesses == 360_001


def test_a_table_grows_while_keys_come_and_no_count_is_lost():
    counter, random = KeyCounter(1 << 17), np.random.default_rng(SEED)
    keys = random.integers(0, 2**40, 100_000)
    sizes = set()
    for part in np.array_split(np.concatenate([keys, keys]), 50):
        counter.add(part)
        sizes.add(counter.memory_bytes)
        assert counter.memory_bytes <= counter.memory_bytes_max
    expected_keys, expected = np.unique(keys, return_counts=True)
    found_keys, found = counter.copied().items()
    assert found_keys.tolist() == expected_keys.tolist()
    assert found.tolist() == (2 * expected).tolist()
    assert len(sizes) > 2


@pytest.mark.parametrize("keys_max", [2, 3071, 3072, 3073, 12_288, 50_000])
def test_memory_never_exceeds_its_bound(keys_max):
    counter, random = KeyCounter(keys_max), np.random.default_rng(SEED)
    for _ in range(20):
        counter.add(random.integers(0, 2**62, 10_000))
        assert counter.distinct <= keys_max
        assert counter.memory_bytes <= counter.memory_bytes_max
    assert counter.memory_bytes_max <= max(24 * 4096, 24 * keys_max * 8 / 3)


def test_clear_forgets_counts_error_and_memory():
    counter = KeyCounter(5000)
    empty = counter.memory_bytes
    counter.add(np.arange(20_000))
    assert counter.error > 0
    assert counter.memory_bytes > empty
    counter.clear()
    assert (counter.accesses, counter.distinct, counter.error) == (0, 0, 0)
    assert counter.memory_bytes == empty
    assert held(counter) == {}
    counter.add(np.array([3, 3]))
    assert held(counter) == {3: 2}


def test_a_column_of_a_matrix_is_counted_as_it_lies():
    counter = KeyCounter()
    columns = np.array([[1, 9], [1, 8], [2, 7]], np.int64)
    columns.flags.writeable = False
    counter.add(columns[:, 0], columns[:, 1])
    assert held(counter) == {1: 17, 2: 7}

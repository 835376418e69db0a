"""The key index against a plain sorted list."""

import numpy as np
import pytest

from embstore.storage.key_index import GROUP_KEYS, LIST_MAX, KeyIndex

SEED = 47
SIZE = 48


def some(count, seed=SEED, groups=1):
    chosen = np.random.default_rng(seed).choice(groups * GROUP_KEYS, count, replace=False)
    return np.sort(chosen).astype(np.int64)


SETS = {
    "one key": np.array([5]),
    "the last key": np.array([(1 << 52) - 1]),
    "the ends of a group": np.array([0, GROUP_KEYS - 1, GROUP_KEYS]),
    "all keys of a group": np.arange(GROUP_KEYS) + 3 * GROUP_KEYS,
    "all keys but one": np.delete(np.arange(GROUP_KEYS), 12_345),
    "the longest list": some(LIST_MAX),
    "the shortest bitmap": some(LIST_MAX + 1),
    "half a group": some(GROUP_KEYS // 2),
    "some groups, some left out": np.concatenate(
        [some(40), some(GROUP_KEYS - 9) + 2 * GROUP_KEYS, np.arange(GROUP_KEYS) + 9 * GROUP_KEYS]
    ),
    "all over the range": np.unique(np.random.default_rng(SEED).integers(0, 1 << 52, 5_000)),
}


@pytest.fixture(params=SETS)
def keys(request):
    return np.asarray(SETS[request.param], np.int64)


def index_of(keys):
    return KeyIndex.of(keys, [(0, 4096, SIZE)])


def test_its_keys_are_those_it_was_made_of(keys):
    index = index_of(keys)
    found, offsets, sizes = index.between(0, 1 << 53)
    assert np.array_equal(found, keys)
    assert np.array_equal(offsets, 4096 + SIZE * np.arange(len(keys)))
    assert (sizes == SIZE).all()
    assert index.count == len(keys)
    assert index.end == 4096 + SIZE * len(keys)


def test_the_first_record_not_below_a_key_is_found(keys):
    rng = np.random.default_rng(SEED)
    near = np.concatenate([keys[:2_000] + shift for shift in (-1, 0, 1)])
    asked = np.concatenate([near, rng.integers(0, 1 << 53, 500), [0, 1 << 53]]).clip(0)
    expected = 4096 + SIZE * np.searchsorted(keys, asked)
    assert np.array_equal(index_of(keys).offsets_of(asked), expected)


def test_the_keys_of_a_range(keys):
    index, rng = index_of(keys), np.random.default_rng(SEED)
    for _ in range(30):
        low, high = np.sort(rng.choice(np.append(keys, [0, 1 << 53]), 2)) + rng.integers(-1, 2, 2)
        low, high = max(int(low), 0), max(int(high), 0)
        expected = keys[(keys >= low) & (keys < high)]
        found, offsets, _ = index.between(low, high)
        assert np.array_equal(found, expected)
        assert np.array_equal(offsets, 4096 + SIZE * np.searchsorted(keys, expected))


def test_it_takes_two_bytes_a_key_at_most_beside_its_groups(keys):
    index = index_of(keys)
    groups = len(np.unique(keys // GROUP_KEYS))
    assert index.directory.nbytes == 40 * groups
    assert (
        index.containers.nbytes
        <= 2 * len(keys) + 6 * groups + 128 * (len(keys) > LIST_MAX) * groups
    )


def test_records_of_other_sizes():
    tables = [(1, 100, 32), (2, 40_000, 80), (5, GROUP_KEYS, 4_112)]
    keys, runs, at, offsets = [], [], 4096, []
    for table, count, size in tables:
        runs.append((sum(map(len, keys)), at, size))
        keys.append(np.arange(count) | table << 40)
        offsets.append(at + size * np.arange(count))
        at += size * count
    index = KeyIndex.of(np.concatenate(keys), runs)
    found, where, sizes = index.between(0, 1 << 52)
    assert np.array_equal(found, np.concatenate(keys))
    assert np.array_equal(where, np.concatenate(offsets))
    assert np.array_equal(sizes, np.repeat([32, 80, 4_112], [100, 40_000, GROUP_KEYS]))
    assert index.end == at
    assert index.table_bytes(40) == {table: count * size for table, count, size in tables}

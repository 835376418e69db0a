"""The loops of counting and recording by key, against dictionaries, in tables nearly full."""

from collections import Counter

import numpy as np

from embstore.host.key_table import lower
from embstore.hotness.count_keys import count_keys, entries_of, keep_events, record_keys
from embstore.profiles.profile import spatial_hash, spatial_limit, table_seed

SEED = 73
EACH_ONCE = np.empty(0, np.int64)


def table_of(places):
    return np.zeros((places, 2), np.int64)


def entries(table, taken):
    keys, counts = np.empty(taken, np.int64), np.empty(taken, np.int64)
    entries_of(table, keys, counts)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def test_counting_stops_at_the_first_key_without_room():
    table = table_of(8)
    keys = np.array([5, 5, 6, 7, 5, 8, 5])
    assert count_keys(table, keys, EACH_ONCE, 0, 0, 3) == (5, 3)
    assert entries(table, 3) == {5: 3, 6: 1, 7: 1}
    assert count_keys(table, keys, EACH_ONCE, 5, 3, 4) == (7, 4)
    assert entries(table, 4) == {5: 4, 6: 1, 7: 1, 8: 1}


def test_random_keys_in_a_table_with_one_free_place():
    random = np.random.default_rng(SEED)
    for _ in range(200):
        table, keys = table_of(16), random.integers(-9, 9, 60)
        keys = keys[np.isin(keys, np.unique(keys)[:15])]
        counts = random.integers(1, 2**40, len(keys))
        position, taken = count_keys(table, keys, counts, 0, 0, 15)
        expected = Counter()
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            expected[key] += count
        assert (position, taken) == (len(keys), len(expected))
        assert entries(table, taken) == expected


def test_lowering_finds_every_entry_that_stays():
    random = np.random.default_rng(SEED)
    for amount in range(1, 60):
        table = table_of(64)
        keys = np.unique(random.integers(0, 10**6, 60))
        counts = random.integers(1, 60, len(keys))
        count_keys(table, keys, counts, 0, 0, 63)
        left = {
            k: c - amount for k, c in zip(keys.tolist(), counts.tolist(), strict=True) if c > amount
        }
        assert lower(table, amount, amount) == len(left)
        assert entries(table, len(left)) == left
        # Each is where it is looked for: counted once more, none takes a new place.
        again = np.array(list(left), np.int64)
        assert count_keys(table, again, EACH_ONCE, 0, len(left), len(left))[1] == len(left)


def samples_of(names, rate):
    return np.array([[table_seed(name), spatial_limit(rate)] for name in names], np.uint64)


def recorded(keys, counts, rate):
    event_keys, event_counts = np.empty((2, len(keys)), np.int64)
    scratch = np.full(1 << max(1, (2 * len(keys) - 1).bit_length()), 7, np.uint64)
    unique, end = record_keys(
        np.array(keys, np.int64),
        np.array(counts, np.int64),
        samples_of("v", rate)[0],
        scratch,
        event_keys,
        event_counts,
    )
    return unique, list(zip(event_keys[:end].tolist(), event_counts[:end].tolist(), strict=True))


def test_events_come_in_the_order_of_their_first_occurrences():
    assert recorded([4, 3, 4], [], 1.0) == (2, [(4, 2), (3, 1)])
    assert recorded([3, 3, 9], [], 1.0) == (2, [(3, 2), (9, 1)])
    assert recorded([4, 3, 4], [1, 10, 100], 1.0) == (2, [(4, 101), (3, 10)])
    assert recorded([], [], 1.0) == (0, [])
    assert recorded([4, 3, 4], [], 2**-32) == (2, [])


def test_events_whose_keys_are_out_go_and_the_others_keep_their_order():
    random = np.random.default_rng(SEED)
    calls = np.sort(random.integers(0, 50, 1_000)).astype(np.int32)
    tables = random.integers(0, 2, 1_000).astype(np.int32)
    keys, counts = random.integers(0, 2**40, 1_000), random.integers(1, 9, 1_000)
    limit = np.uint64(spatial_limit(0.25))
    hashes = np.where(tables == 0, spatial_hash("v", keys), spatial_hash("w", keys))
    stays = (hashes <= limit) & (np.arange(1_000) < 900)
    expected = [column[stays].tolist() for column in (calls, tables, keys, counts)]
    kept = keep_events(calls, tables, keys, counts, 900, samples_of("vw", 0.25))
    assert [column[:kept].tolist() for column in (calls, tables, keys, counts)] == expected

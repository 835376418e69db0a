"""The loops of counting and recording by key, against dictionaries, in tables nearly full."""

from collections import Counter

import numpy as np

from embstore.frequency.profile import spatial_hash, spatial_limit, table_seed
from embstore.kernels.count_keys import (
    carry_counts,
    count_keys,
    entries_of,
    keep_events,
    lower,
    record_keys,
)

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
        assert lower(table, amount) == len(left)
        assert entries(table, len(left)) == left
        # Each is where it is looked for: counted once more, none takes a new place.
        again = np.array(list(left), np.int64)
        assert count_keys(table, again, EACH_ONCE, 0, len(left), len(left))[1] == len(left)


def test_a_larger_table_has_the_same_entries():
    keys = np.arange(0, 4_000, 7)
    table, other = table_of(1024), table_of(4096)
    _, taken = count_keys(table, keys, keys + 1, 0, 0, 1000)
    carry_counts(table, other)
    assert entries(other, taken) == entries(table, taken)
    assert count_keys(other, keys, EACH_ONCE, 0, taken, taken) == (len(keys), taken)


def samples_of(names, rate):
    return np.array([[table_seed(name), spatial_limit(rate)] for name in names], np.uint64)


def recorded(keys, counts, bounds, tables, samples):
    room = len(keys)
    event_tables = np.empty(room, np.int32)
    event_keys, event_counts = np.empty(room, np.int64), np.empty(room, np.int64)
    largest = max(2, 2 * int(np.diff(bounds).max()))
    scratch = np.full(1 << (largest - 1).bit_length(), 7, np.uint64)
    unique, end = record_keys(
        np.array(keys, np.int64),
        np.array(counts, np.int64),
        np.array(bounds, np.int64),
        np.array(tables, np.int32),
        samples,
        scratch,
        event_tables,
        event_keys,
        event_counts,
    )
    columns = event_tables[:end], event_keys[:end], event_counts[:end]
    return unique, list(zip(*(column.tolist() for column in columns), strict=True))


def test_events_come_in_the_order_of_their_first_occurrences():
    samples = samples_of("vw", 1.0)
    assert recorded([4, 3, 4, 3, 3, 9], [], [0, 3, 3, 6], [1, 0, 0], samples) == (
        4,
        [(1, 4, 2), (1, 3, 1), (0, 3, 2), (0, 9, 1)],
    )
    assert recorded([4, 3, 4], [1, 10, 100], [0, 3], [0], samples) == (2, [(0, 4, 101), (0, 3, 10)])


def test_what_is_in_is_what_the_hash_says():
    random = np.random.default_rng(SEED)
    for name in ("v", "criteo/c01"):
        keys = random.integers(0, 2**63 - 1, 5_000, endpoint=True)
        unique, events = recorded(keys, [], [0, len(keys)], [0], samples_of([name], 0.3))
        assert unique == len(np.unique(keys))
        is_in = spatial_hash(name, keys) <= np.uint64(spatial_limit(0.3))
        assert [key for _, key, _ in events] == keys[is_in].tolist()


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

"""The log index as a whole: growth, removal, counts, against a dictionary."""

import numpy as np

from embstore.storage.row_index import PLACE_BITS, RowIndex
from tests.unit.small_stores import generator

SEED = 61
PLACES = 9


def test_index_grows_and_shrinks_as_a_dictionary_does():
    rng, index, model = generator(SEED), RowIndex(), {}
    live, frozen = np.zeros(PLACES, np.int64), np.zeros(PLACES, np.uint8)
    sizes = set()
    for round_number in range(60):
        count = int(rng.integers(1, 2_000))
        keys = rng.integers(0, 30_000, count) | rng.integers(0, 3, count) << 40
        positions = rng.integers(0, PLACES, count) << PLACE_BITS | rng.integers(0, 1 << 39, count)
        index.put(keys, positions, live, frozen)
        model |= dict(zip(keys.tolist(), positions.tolist(), strict=True))
        if round_number % 3 == 2:
            gone = rng.permutation(np.array([*model]))[: len(model) // 2]
            olds = np.array([model.pop(int(key)) for key in gone])
            np.subtract.at(live, olds >> PLACE_BITS, 1)
            index.repoint(gone, olds, np.full(len(gone), -1), live)
        sizes.add(index.memory_bytes)
        assert index.size == len(model)
        expected = np.array([*model.values()])
        assert np.array_equal(np.sort(index.positions()), np.sort(expected))
        counted = np.bincount(expected >> PLACE_BITS, minlength=PLACES)
        assert live.tolist() == counted.tolist()
    keys = np.array([*model])
    assert index.positions_of(keys).tolist() == [*model.values()]
    assert (index.positions_of(np.arange(30_000, 30_500)) == -1).all()
    assert len(sizes) == 3, "the index must have grown twice"


def test_a_large_index_grows_little_by_little_and_loses_nothing_meanwhile():
    rng, index, live = generator(SEED), RowIndex(), np.zeros(PLACES, np.int64)
    keys = rng.permutation(400_000) << 3
    shared = removed = 0
    for low in range(0, len(keys), 2_000):
        part = keys[low : low + 2_000]
        index.put(part, part | 1 << PLACE_BITS, live, np.zeros(PLACES, np.uint8))
        shared += len(index._old) > 1
        if len(index._old) > 1 and low % 10_000 == 0:  # of both tables, some
            gone = keys[removed : removed + 500]
            index.repoint(gone, gone | 1 << PLACE_BITS, np.full(500, -1), live)
            again = keys[removed + 500 : removed + 600]
            index.put(again, again | 2 << PLACE_BITS, live, np.zeros(PLACES, np.uint8))
            removed += 600
            assert (index.positions_of(gone) == -1).all()
            assert index.positions_of(again).tolist() == (again | 2 << PLACE_BITS).tolist()
        assert index.size == len(index.positions())
    assert shared > 8, "expected to see it grow"
    left = np.setdiff1d(
        keys, np.concatenate([keys[at : at + 500] for at in range(0, removed, 600)])
    )
    assert index.size == len(left)
    assert (index.positions_of(left) & ~(3 << PLACE_BITS)).tolist() == left.tolist()
    assert np.array_equal(np.sort(index.keys_between(0, 1 << 40)), left)


def test_keys_of_a_table_are_those_in_its_range():
    index = RowIndex()
    keys = np.array([0, 5, (1 << 40) - 1, 1 << 40, 1 << 40 | 7, 3 << 40])
    index.put(keys, np.zeros(6, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint8))
    assert sorted(index.keys_between(0, 1 << 40).tolist()) == [0, 5, (1 << 40) - 1]
    assert sorted(index.keys_between(1 << 40, 2 << 40).tolist()) == [1 << 40, 1 << 40 | 7]
    assert index.keys_between(2 << 40, 3 << 40).tolist() == []


def test_memory_is_bounded_by_rows():
    """Limits.log_rows_max promises at most about 46 bytes a row once there are many."""
    index, live = RowIndex(), np.zeros(1, np.int64)
    for start in range(0, 60_000, 500):
        keys = np.arange(start, start + 500)
        index.put(keys, np.zeros(500, np.int64), live, np.zeros(1, np.uint8))
        if index.size > 5_000:
            assert index.memory_bytes <= 47 * index.size


def test_an_index_that_was_emptied_gives_its_memory_back():
    index, live = RowIndex(), np.zeros(2, np.int64)
    keys = np.arange(300_000)
    for part in np.array_split(keys, 10):
        index.put(part, part, live, np.zeros(2, np.uint8))
    index.repoint(keys, keys, np.full(len(keys), -1), live)
    assert index.size == 0
    assert index.memory_bytes < 1 << 20

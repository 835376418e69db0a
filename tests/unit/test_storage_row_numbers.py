"""Row numbers of a sparse table, against a dictionary."""

import threading

import numpy as np
import pytest

from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.errors import CapacityError
from embstore.host.workers import Workers
from embstore.storage import row_numbers
from embstore.storage.row_numbers import NOWHERE, RowNumbers
from tests.unit.small_stores import generator

SEED = 71
EXTREMES = np.array([0, 1 << 63, (1 << 64) - 2, 1, (1 << 63) - 1, 1 << 40], np.uint64).view(
    np.int64
)


def numbers_of(numbers, ids):
    """Return the number of each id, -1 where it has none."""
    row_keys = numbers.row_keys_of(np.asarray(ids, np.int64))
    assert (row_keys >> KEY_BITS == numbers.table_id).all()
    found = row_keys & KEY_MASK
    return np.where(found == NOWHERE, -1, found).tolist()


def test_ids_get_numbers_in_the_order_of_their_first_assignment():
    numbers = RowNumbers(3)
    assert numbers_of(numbers, EXTREMES) == [-1] * 6
    assert numbers.assign(EXTREMES[:4]).tolist() == [3 << 40 | n for n in range(4)]
    again = numbers.assign(EXTREMES[[5, 1, 4, 0]])
    assert (again & KEY_MASK).tolist() == [4, 1, 5, 0]
    assert numbers_of(numbers, [*EXTREMES, -3, 7]) == [0, 1, 2, 3, 5, 4, -1, -1]
    assert numbers.ids_of(np.array([5, 0, 4])).tolist() == EXTREMES[[4, 0, 5]].tolist()
    assert numbers.count == 6


def test_numbers_grow_as_a_dictionary_does():
    rng, numbers, model = generator(SEED), RowNumbers(1), {}
    shared = 0
    for _ in range(80):
        ids = rng.integers(-(1 << 63), 1 << 63, int(rng.integers(1, 9_000)))
        if model:
            ids = np.concatenate([ids, rng.choice(np.array([*model]), 500)])
        ids = np.unique(ids[ids != -1])
        rng.shuffle(ids)
        found = numbers.assign(ids)
        for key in ids.tolist():
            model.setdefault(key, len(model))
        assert (found & KEY_MASK).tolist() == [model[key] for key in ids.tolist()]
        shared += len(numbers._old) > 1
    assert shared > 3, "expected to see it grow"
    assert numbers.count == len(model)
    assert numbers_of(numbers, [*model]) == [*model.values()]
    assert numbers.first_ids(0, numbers.count).tolist() == [*model]
    assert set(numbers_of(numbers, rng.integers(0, 1 << 62, 5_000))) == {-1}
    numbers.check_integrity()


def test_an_id_takes_at_most_sixteen_bytes_when_it_does_not_grow():
    numbers, rng = RowNumbers(0), generator(SEED)
    for _ in range(60):
        numbers.assign(rng.integers(0, 1 << 62, 5_000))
        if len(numbers._old) == 1:
            assert numbers.memory_bytes <= 16 * numbers.count
        assert numbers.memory_bytes <= 21 * numbers.count


def test_threads_that_share_a_call_find_the_same():
    workers = Workers(3, 2)
    workers.split_bytes = 0
    numbers, ids = RowNumbers(0), generator(SEED).integers(0, 1 << 62, 10_000)
    numbers.assign(ids[:7_000], workers)
    alone, shared = numbers.row_keys_of(ids), numbers.row_keys_of(ids, workers)
    workers.close()
    assert alone.tolist() == shared.tolist()
    assert (alone[:7_000] & KEY_MASK).tolist() == list(range(7_000))


def test_ids_are_read_while_others_are_assigned():
    numbers, ids = RowNumbers(0), generator(SEED).permutation(400_000) * 977
    wrong, is_over = [], threading.Event()

    def read():
        while not is_over.is_set():
            count = numbers.count
            if not np.array_equal(numbers.ids_of(np.arange(count)), ids[:count]):
                wrong.append(count)

    thread = threading.Thread(target=read)
    thread.start()
    for low in range(0, len(ids), 3_000):
        numbers.assign(ids[low : low + 3_000])
    is_over.set()
    thread.join()
    assert not wrong


def test_where_room_was_made_numbers_cannot_fail(monkeypatch):
    numbers, ids = RowNumbers(0), np.arange(500_000) * 3

    def refuse(count):
        raise CapacityError("no memory")

    numbers.make_room(len(ids))
    monkeypatch.setattr(row_numbers, "reserve", refuse)
    for part in np.array_split(ids, 7):
        numbers.assign(part)
    before = numbers.memory_bytes
    with pytest.raises(CapacityError, match="no memory"):
        numbers.make_room(1 << 21)
    assert (numbers.memory_bytes, numbers.count) == (before, len(ids))
    assert numbers_of(numbers, ids) == list(range(len(ids)))
    with pytest.raises(CapacityError, match="at most 3221225472 rows"):
        numbers.make_room(3 << 30)

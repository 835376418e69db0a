"""The log index's loops against a dictionary: find, put, repoint, removal, and what is counted."""

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY
from embstore.storage.row_index import PLACE_BITS, add_keys, find, put, repoint

SEED = 43
PLACES = 5


def table(capacity):
    return np.full(capacity, EMPTY_KEY), np.full(capacity, 77)


def position(place, offset):
    return place << PLACE_BITS | offset


def found(index, keys):
    positions = np.full(len(keys), -9)
    find(*index, np.asarray(keys, np.int64), positions)
    return positions.tolist()


def put_all(index, entries, live):
    keys, positions = np.array(entries, np.int64).T.copy()
    return put(*index, keys, positions, live, np.zeros(PLACES, np.uint8))


def entries_of(index):
    keys, positions = index
    used = keys != EMPTY_KEY
    return dict(zip(keys[used].tolist(), positions[used].tolist(), strict=True))


@pytest.mark.parametrize("capacity", [4, 8, 64])
def test_removal_leaves_every_other_key_findable(capacity):
    """Runs wrap around the end of the table; holes are closed, whichever entry goes."""
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        index, live = table(capacity), np.zeros(PLACES, np.int64)
        keys = rng.choice(1000, capacity - 1, replace=False)
        put_all(index, [(int(key), position(1, i)) for i, key in enumerate(keys)], live)
        gone = rng.permutation(capacity - 1)[: int(rng.integers(1, capacity))]
        nowhere = np.full(len(gone), -1)
        removed = repoint(*index, keys[gone], gone | position(1, 0), nowhere, live)
        assert removed == len(gone)
        kept = {int(k): position(1, i) for i, k in enumerate(keys) if i not in gone}
        assert found(index, keys) == [kept.get(int(key), -1) for key in keys]
        assert entries_of(index) == kept


def test_random_operations_agree_with_a_dictionary():
    rng = np.random.default_rng(SEED)
    index, model, live = table(256), {}, np.zeros(PLACES, np.int64)
    for _ in range(600):
        keys = rng.integers(0, 220, rng.integers(1, 30)) << 30
        new = position(rng.integers(0, PLACES, len(keys)), rng.integers(0, 1 << 30, len(keys)))
        if rng.random() < 0.5:
            before = len(model)
            model |= dict(zip(keys.tolist(), new.tolist(), strict=True))
            entries = list(zip(keys.tolist(), new.tolist(), strict=True))
            assert put_all(index, entries, live) == len(model) - before
        else:
            keys = np.unique(keys)
            olds = np.array([model.get(int(key), 0) for key in keys])
            stale = rng.random(len(keys)) < 0.2
            goes = [int(k) in model and not s for k, s in zip(keys, stale, strict=True)]
            nowhere, ignored = np.full(len(keys), -1), np.zeros(PLACES, np.int64)
            removed = repoint(*index, keys, olds + stale, nowhere, ignored)
            assert removed == sum(goes)
            np.subtract.at(live, olds[goes] >> PLACE_BITS, 1)
            for key in keys[goes].tolist():
                del model[key]
        assert entries_of(index) == model
        counted = np.bincount(np.array([*model.values()], np.int64) >> PLACE_BITS, minlength=5)
        assert live.tolist() == counted.tolist()
    every = np.arange(220) << 30
    assert found(index, every) == [model.get(int(key), -1) for key in every]


def test_add_keys_is_a_set_of_shifted_keys():
    members, rng = np.full(64, EMPTY_KEY), np.random.default_rng(SEED)
    keys, seen = rng.integers(0, 40 << 8, 200), set()
    for part in np.split(keys, 10):
        before = len(seen)
        seen |= set((part >> 8).tolist())
        assert add_keys(members, part, 8) == len(seen) - before
    assert set(members[members != EMPTY_KEY].tolist()) == seen

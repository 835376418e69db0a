"""insert and erase: like a dictionary, also for keys that are made to collide."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.arrays import EMPTY_KEY
from embstore.device.cpu import STASH_KEYS
from embstore.kernels.probe import BUCKET_WIDTH
from tests.kernels.samples import devices
from tests.kernels.test_probe import probe

SEED = 5
DEVICE = devices()[0]


def check_integrity(index, expected):
    """Every key stands once, in one of its buckets or in the stash, with its slot."""
    used = int(index.stash_count[0])
    present = index.bucket_keys != EMPTY_KEY
    keys = [*index.bucket_keys[present].tolist(), *index.stash_keys[:used].tolist()]
    slots = [*index.bucket_slots[present].tolist(), *index.stash_slots[:used].tolist()]
    assert len(keys) == len(expected)
    assert dict(zip(keys, slots, strict=True)) == expected
    assert probe(DEVICE, index, keys) == slots


def insert(index, keys, slots):
    return DEVICE.insert(index, np.array(keys, np.int64), np.array(slots, np.int64))


def buckets_of(keys, bucket_count):
    """Return each key's two buckets, as the kernel computes them."""
    h = np.asarray(keys).astype(np.uint64)
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(multiplier)
    h ^= h >> np.uint64(33)
    halves = (h >> np.uint64(32)), h & np.uint64(0xFFFFFFFF)
    return [((half * np.uint64(bucket_count)) >> np.uint64(32)).astype(int) for half in halves]


def colliding_keys(count, bucket_count):
    """Return keys whose two buckets are both among the first two."""
    candidates = np.arange(count * bucket_count**2 // 2)
    first, second = buckets_of(candidates, bucket_count)
    return candidates[(first < 2) & (second < 2)][:count].tolist()


def test_colliding_keys_go_to_the_stash_until_it_is_full():
    index = DEVICE.allocate_index(100)
    room = 2 * BUCKET_WIDTH + STASH_KEYS
    keys = colliding_keys(room + 1, len(index.bucket_keys))
    expected = dict(zip(keys[:room], range(room), strict=True))
    assert insert(index, keys[:room], range(room))
    assert index.stash_count[0] == STASH_KEYS
    check_integrity(index, expected)
    assert not insert(index, keys[room:], [0])
    for half in (keys[0:room:2], keys[1:room:2]):
        DEVICE.erase(index, np.array(half))
        for key in half:
            del expected[key]
        check_integrity(index, expected)
    assert index.stash_count[0] == 0


def test_a_full_pair_of_buckets_makes_room_by_moving_a_key():
    index = DEVICE.allocate_index(100)
    bucket_count = len(index.bucket_keys)
    candidates = np.arange(20_000)
    first, second = buckets_of(candidates, bucket_count)
    movable = candidates[(first == 0) & (second > 1)][:BUCKET_WIDTH].tolist()
    index.bucket_keys[0, :] = movable  # as two choices may leave them after some erasing
    index.bucket_slots[0, :] = range(BUCKET_WIDTH)
    fixed = candidates[(first == 1) & (second == 1)][:BUCKET_WIDTH].tolist()
    assert insert(index, fixed, range(10, 10 + BUCKET_WIDTH))
    new = candidates[(first == 0) & (second == 1)][:1].tolist()
    assert insert(index, new, [99])
    assert index.stash_count[0] == 0
    both = zip(movable + fixed + new, [*range(8), *range(10, 18), 99], strict=True)
    check_integrity(index, dict(both))


def test_erase_then_insert_on_a_full_table_never_needs_the_stash():
    rng = np.random.default_rng(SEED)
    slot_count, part = 9_000, 3_000
    index = DEVICE.allocate_index(slot_count)
    keys = np.unique(rng.integers(0, 1 << 50, slot_count + 41 * part))
    rng.shuffle(keys)
    present = keys[:slot_count].copy()
    assert insert(index, present, range(slot_count))
    for i in range(40):
        slots = rng.choice(slot_count, part, replace=False)
        DEVICE.erase(index, present[slots])
        present[slots] = keys[slot_count + i * part :][:part]
        assert insert(index, present[slots], slots)
    assert index.stash_count[0] == 0
    check_integrity(index, dict(zip(present.tolist(), range(slot_count), strict=True)))


operations = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 60))), max_size=12)


@settings(deadline=None)  # the first call may compile
@given(operations)
def test_random_operations_are_those_of_a_dictionary(steps):
    index = DEVICE.allocate_index(16)  # three buckets for 61 keys: the stash is used
    expected = {}
    for is_insertion, keys in steps:
        if is_insertion:
            new = [key for key in keys if key not in expected]
            assert insert(index, new, [key + 100 for key in new])
            expected |= {key: key + 100 for key in new}
        else:
            old = [key for key in keys if expected.pop(key, None) is not None]
            DEVICE.erase(index, np.array(old, np.int64))
        check_integrity(index, expected)
        assert probe(DEVICE, index, range(61)) == [expected.get(key, -1) for key in range(61)]

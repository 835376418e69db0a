"""insert and erase: like a dictionary, also for keys that are made to collide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.arrays import EMPTY_KEY
from embstore.device.buckets import STASH_KEYS
from embstore.kernels.probe import BUCKET_WIDTH
from tests.kernels.samples import down, each_device, overwrite, slots_with
from tests.kernels.test_probe import find

SEED = 5


def stash_count(device, index):
    return down(device, index.stash_count).tolist()[0]


def check_integrity(device, index, expected):
    """Every key stands once, in one of its buckets or in the stash, with its slot."""
    used = stash_count(device, index)
    bucket_keys = down(device, index.bucket_keys).ravel()
    present = bucket_keys != EMPTY_KEY
    bucket_slots = down(device, index.bucket_slots).ravel()[present]
    keys = [*bucket_keys[present].tolist(), *down(device, index.stash_keys)[:used].tolist()]
    slots = [*bucket_slots.tolist(), *down(device, index.stash_slots)[:used].tolist()]
    assert len(keys) == len(expected)
    assert dict(zip(keys, slots, strict=True)) == expected
    assert find(device, index, keys) == slots


def bucket_count_of(index):
    return index.bucket_keys.nbytes // (8 * BUCKET_WIDTH)


def insert(device, index, keys, slots):
    return device.keys.insert(index, np.array(keys, np.int64), np.array(slots, np.int64))()


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


@each_device
def test_colliding_keys_go_to_the_stash_until_it_is_full(device):
    index = device.memory.allocate_index(100)
    room = 2 * BUCKET_WIDTH + STASH_KEYS
    keys = colliding_keys(room + 1, bucket_count_of(index))
    expected = dict(zip(keys[:room], range(room), strict=True))
    assert insert(device, index, keys[:room], range(room))
    assert stash_count(device, index) == STASH_KEYS
    check_integrity(device, index, expected)
    assert not insert(device, index, keys[room:], [0])
    for half in (keys[0:room:2], keys[1:room:2]):
        device.keys.erase(index, np.array(half))
        for key in half:
            del expected[key]
        check_integrity(device, index, expected)
    assert stash_count(device, index) == 0


@each_device
def test_a_full_pair_of_buckets_makes_room_by_moving_a_key(device):
    index = device.memory.allocate_index(100)
    bucket_count = bucket_count_of(index)
    candidates = np.arange(20_000)
    first, second = buckets_of(candidates, bucket_count)
    movable = candidates[(first == 0) & (second > 1)][:BUCKET_WIDTH].tolist()
    overwrite(device, index.bucket_keys, movable)  # as two choices may leave them after erasing
    overwrite(device, index.bucket_slots, np.arange(BUCKET_WIDTH, dtype=np.uint32))
    fixed = candidates[(first == 1) & (second == 1)][:BUCKET_WIDTH].tolist()
    assert insert(device, index, fixed, range(10, 10 + BUCKET_WIDTH))
    new = candidates[(first == 0) & (second == 1)][:1].tolist()
    assert insert(device, index, new, [99])
    assert stash_count(device, index) == 0
    both = zip(movable + fixed + new, [*range(8), *range(10, 18), 99], strict=True)
    check_integrity(device, index, dict(both))


@each_device
def test_erase_then_insert_on_a_full_table_never_needs_the_stash(device):
    rng = np.random.default_rng(SEED)
    slot_count, part = 9_000, 3_000
    index = device.memory.allocate_index(slot_count)
    keys = np.unique(rng.integers(0, 1 << 50, slot_count + 41 * part))
    rng.shuffle(keys)
    present = keys[:slot_count].copy()
    assert insert(device, index, present, range(slot_count))
    for i in range(40):
        slots = rng.choice(slot_count, part, replace=False)
        device.keys.erase(index, present[slots])
        present[slots] = keys[slot_count + i * part :][:part]
        assert insert(device, index, present[slots], slots)
    assert stash_count(device, index) == 0
    expected = dict(zip(present.tolist(), range(slot_count), strict=True))
    check_integrity(device, index, expected)


operations = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 60))), max_size=12)


@each_device
@given(operations)
def test_random_operations_are_those_of_a_dictionary(device, steps):
    index = device.memory.allocate_index(16)  # three buckets for 61 keys: the stash is used
    expected = {}
    for is_insertion, keys in steps:
        if is_insertion:
            new = [key for key in keys if key not in expected]
            assert insert(device, index, new, [key + 100 for key in new])
            expected |= {key: key + 100 for key in new}
        else:
            old = [key for key in keys if expected.pop(key, None) is not None]
            device.keys.erase(index, np.array(old, np.int64))
        check_integrity(device, index, expected)
        assert find(device, index, range(61)) == [expected.get(key, -1) for key in range(61)]


@each_device
@pytest.mark.parametrize("slot_count", [0, 1, 100, 3_000])
def test_an_index_of_all_slots_is_that_of_their_keys(device, slot_count):
    rng = np.random.default_rng(SEED)
    keys = np.where(rng.random(3_000) < 0.2, EMPTY_KEY, rng.permutation(1 << 20)[:3_000])
    rows = np.zeros((3_000, 4), np.float32)
    memory = slots_with(device, rows, keys=keys, slab_slots=1024)
    index = device.memory.allocate_index(slot_count)
    assert device.keys.insert_slots(index, memory, slot_count)
    slots = np.flatnonzero(keys[:slot_count] != EMPTY_KEY)
    expected = dict(zip(keys[slots].tolist(), slots.tolist(), strict=True))
    check_integrity(device, index, expected)


@each_device
def test_an_index_without_room_for_all_slots_is_refused(device):
    index = device.memory.allocate_index(100)
    keys = colliding_keys(2 * BUCKET_WIDTH + STASH_KEYS + 1, bucket_count_of(index))
    memory = slots_with(device, np.zeros((len(keys), 4), np.float32), keys=keys)
    assert not device.keys.insert_slots(index, memory, len(keys))
    index = device.memory.allocate_index(100)
    assert device.keys.insert_slots(index, memory, len(keys) - 1)
    check_integrity(device, index, {key: slot for slot, key in enumerate(keys[:-1])})

"""count_accesses: positions of ids, and those with a slot, against counting one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.samples import batch_of, devices, down, up

SEED = 13


@given(st.data())
def test_count_accesses_counts_positions_of_ids_and_those_with_a_slot(data):
    keys = data.draw(st.lists(st.integers(0, 6), max_size=50))
    low = data.draw(st.integers(0, 4))
    slots = np.array(data.draw(st.lists(st.sampled_from([-1, 0, 9]), max_size=5)), np.int64)
    weights = data.draw(st.none() | st.just(np.arange(len(keys)) * 3 + (1 << 33)))
    ids = {}
    inverse = [ids.setdefault(key, len(ids)) for key in keys]
    accesses = hits = 0
    for position, id in enumerate(inverse):
        if low <= id < low + len(slots):
            count = 1 if weights is None else int(weights[position])
            accesses += count
            hits += count * (slots[id - low] >= 0)
    for device in devices():
        batch = batch_of(device, np.array(keys, np.int64))
        d_slots, high = up(device, slots), low + len(slots)
        assert device.keys.count_accesses(batch, d_slots, low, high, weights)() == (accesses, hits)


def test_count_accesses_of_many():
    """More than a block, whose threads add up among each other."""
    rng = np.random.default_rng(SEED)
    keys = rng.integers(0, 3_000, 20_000)
    slots, weights = rng.integers(-1, 2, 1_000), rng.integers(1, 1 << 35, 20_000)
    for device in devices():
        batch = batch_of(device, keys)
        inverse = down(device, batch.inverse)
        counted = (inverse >= 500) & (inverse < 1_500)
        hit = counted & (slots[np.where(counted, inverse - 500, 0)] >= 0)
        expected = int(weights[counted].sum()), int(weights[hit].sum())
        d_slots = up(device, slots)
        assert device.keys.count_accesses(batch, d_slots, 500, 1_500, weights)() == expected
        numbers = int(counted.sum()), int(hit.sum())
        assert device.keys.count_accesses(batch, d_slots, 500, 1_500, None)() == numbers

"""Rows that change levels, against formulas of NumPy: what is looked for, and what is exchanged."""

from functools import cache

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY, KEY_BITS
from embstore.device.gpu import GpuDevice
from embstore.score import CLOCK_BITS
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.samples import SLAB_SLOTS, awkward, bits, overwrite, parameters, slots_with, wide

COUNTS = (1, 31, 33, 2047, 2049)
"""Around the borders of warps and tiles."""
SEEDS = ((1, 1), (2, 1), (3, 3))
"""Of lanes and blocks, and how many blocks run together."""
TABLES = 3
CLOCK = 1000


@cache
def gpu(seed=0, resident_blocks=1):
    return GpuDevice(EmulatedRuntime(seed=seed, resident_blocks=resident_blocks), threads=1)


class Level:
    """The slots of a level, and the same as arrays of the host."""

    def __init__(self, device, rng, count, stride, keys, *, is_below):
        self.device, self.count = device, count
        self.keys = np.full(count, EMPTY_KEY)
        self.keys[: len(keys)] = keys
        self.keys = rng.permutation(self.keys)
        self.rows = awkward(rng, count, stride, finite=False)
        self.scores = rng.integers(0, CLOCK, count)
        self.dirty = (self.keys != EMPTY_KEY) & (rng.random(count) < 0.5)
        if is_below:
            self.memory = self.pinned(stride)
        else:
            self.memory = slots_with(
                device, self.rows, keys=self.keys, scores=self.scores, dirty=self.dirty
            )

    def pinned(self, stride):
        """Return slots of level two with these contents."""
        below, count = self.device.levels.below, self.count
        memory = below.memory.allocate_slots(wide(stride))
        below.memory.reserve_slots(memory, 0, count, SLAB_SLOTS)
        below.memory.add_slots(memory, 0, -(-count // SLAB_SLOTS) * SLAB_SLOTS)
        self.device.finish()
        for number, slab in enumerate(memory.slabs):
            part = slice(number * SLAB_SLOTS, (number + 1) * SLAB_SLOTS)
            rows = self.rows[part].tobytes()
            slab.rows.owner[: len(rows)] = np.frombuffer(rows, np.uint8)
            columns = (
                (self.keys, EMPTY_KEY, np.int64),
                (self.scores, 0, np.int64),
                (self.dirty, 0, np.uint8),
            )
            padded = [np.full(SLAB_SLOTS, rest, dtype) for _, rest, dtype in columns]
            for column, (values, _, _) in zip(padded, columns, strict=True):
                column[: len(values[part])] = values[part]
            metadata = np.frombuffer(b"".join(c.tobytes() for c in padded), np.uint8)
            overwrite(self.device, slab.metadata, metadata)
        return memory

    def check(self, rows_of):
        """The slots are as the arrays say; of rows those of `rows_of` alone."""
        here = self.device.slots.read_range(self.memory, 0, self.count)
        assert here.keys.tolist() == self.keys.tolist()
        assert here.dirty.tolist() == self.dirty.tolist()
        assert here.scores.tolist() == self.scores.tolist()
        found = [
            np.frombuffer(slab.rows.owner, np.float32)
            if isinstance(slab.rows.owner, np.ndarray)
            else self.device.memory.download(slab.rows.view(np.float32))
            for slab in self.memory.slabs
        ]
        rows = np.concatenate([np.zeros(0, np.float32), *found]).reshape(-1, self.rows.shape[1])
        assert bits(rows[rows_of]) == bits(self.rows[rows_of])


# What is looked for


def looked_for(device, count, free, *, known, seed, slot_count=300, resident=0.3):
    """Look for the missing of `count` keys; return what is found, and what is expected."""
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.permutation(10 * count + 10)[:count]) % (1 << KEY_BITS)
    keys |= np.sort(rng.integers(0, TABLES, count)) << KEY_BITS
    is_resident = rng.random(count) < resident
    slots = np.where(is_resident, rng.integers(0, slot_count, count), -1)
    has = ~is_resident & (rng.random(count) < 0.5)
    above = Level(
        device, rng, slot_count, 4, 1_000_000 + np.arange(slot_count - 40), is_below=False
    )
    below = Level(device, rng, int(has.sum()) + 9, 4, keys[has], is_below=True)
    index = device.memory.allocate_index(max(below.count, 1))
    placed = np.flatnonzero(below.keys != EMPTY_KEY)
    assert device.keys.insert(index, below.keys[placed], placed)()
    if known:
        batch, d_keys, d_slots = None, device.memory.upload(keys), device.memory.upload(slots)
    else:  # as many keys as positions, of which each is there twice
        batch = device.keys.unique(
            [(i, 1 << KEY_BITS, np.repeat(keys[keys >> KEY_BITS == i] & ((1 << KEY_BITS) - 1), 2))
             for i in range(TABLES)]
        )  # fmt: skip
        d_keys = batch.unique_keys
        d_slots = device.memory.upload(np.concatenate([slots, np.full(count, -1)]))
    answer = device.levels.look(
        d_keys, d_slots, batch, index, below.memory, above.memory, slot_count, CLOCK, free,
        parameters(TABLES),
    )  # fmt: skip
    place = dict(zip(below.keys[placed].tolist(), placed.tolist(), strict=True))
    ids = np.flatnonzero(slots < 0)
    in_two = np.array([place.get(key, -1) for key in keys[ids].tolist()], np.int64)
    order = np.concatenate([np.flatnonzero(in_two < 0), np.flatnonzero(in_two >= 0)[::-1]])
    candidates = np.flatnonzero(above.keys != EMPTY_KEY)
    lowest = candidates[np.lexsort((candidates, above.scores[candidates]))]
    victims = np.sort(lowest[: max(len(ids) - free, 0)])
    expected = {
        "keys": keys[ids][order].tolist(),
        "places": ids[order].tolist(),
        "below": in_two[order].tolist(),
        "victims": victims.tolist(),
        "absent": int((in_two < 0).sum()),
        "dirty": int(below.dirty[in_two[in_two >= 0]].sum()),
        "dirty_victims": int(above.dirty[victims].sum()),
        "by_table": np.bincount(keys[ids] >> KEY_BITS, minlength=TABLES).tolist(),
    }
    return answer, expected


def check_found(device, answer, expected):
    found = answer()
    for name in ("keys", "places", "below", "victims"):
        assert device.memory.download(getattr(found, name)).tolist() == expected[name], name
    for name in ("absent", "dirty", "dirty_victims"):
        assert getattr(found, name) == expected[name], name
    assert found.by_table.tolist() == expected["by_table"]


@pytest.mark.parametrize("known", [True, False], ids=["known", "in a batch"])
@pytest.mark.parametrize("count", COUNTS)
def test_missing_keys_are_parted_and_victims_are_chosen_for_those_without_a_slot(count, known):
    for seed, together in SEEDS:
        for free in (0, 20, 5000):  # none; fewer than are absent, or more
            device = gpu(seed, together)
            check_found(device, *looked_for(device, count, free, known=known, seed=seed))


def test_of_a_batch_whose_rows_are_all_there_nothing_is_found():
    device = gpu()
    check_found(device, *looked_for(device, 40, 0, known=False, seed=4, resident=1.0))


# What is exchanged


@pytest.mark.parametrize(
    ("count", "stride"),
    [*((count, 8) for count in COUNTS), *((33, stride) for stride in (4, 68, 132, 4100))],
)
def test_rows_keys_and_flags_change_levels(count, stride):
    for seed, together in SEEDS:
        for kind in ("all down", "some free", "some leave"):
            exchange(gpu(seed, together), count, stride, kind, seed)


def exchange(device, count, stride, kind, seed):
    """Exchange `count` pairs.

    kind : "some free": rows come to free slots, too, and none goes down for them. "some leave": of
        the first rows none comes up; some of these have no place in level two, and leave
    """
    rng = np.random.default_rng(seed)
    first_up = count // 2 if kind == "some leave" else 0
    first_down = count // 3 if kind == "some free" else 0
    above = Level(device, rng, count + 7, stride, 10_000 + np.arange(count + 7), is_below=False)
    below = Level(device, rng, count + 5, stride, 20_000 + np.arange(count + 5), is_below=True)
    slots, places = rng.permutation(count + 7)[:count], rng.permutation(count + 5)[:count]
    for level, freed in ((above, slots[:first_down]), (below, places[:first_up])):
        device.levels.below.slots.clear_slots(level.memory, freed)
        level.keys[freed], level.dirty[freed] = EMPTY_KEY, False
        level.scores = device.slots.read_range(level.memory, 0, level.count).scores
    places[: first_up // 2] = -1
    come = below.keys[places].copy()
    left = device.levels.exchange(
        above.memory, below.memory, *map(device.memory.upload, (slots, places, come)), first_up,
        first_down, 77, 88,
    )  # fmt: skip
    up, down = np.arange(count) >= first_up, np.arange(count) >= first_down
    keys, dirty, rows = above.keys[slots], above.dirty[slots], above.rows[slots]
    assert device.memory.download(left).tolist() == np.where(down, keys, EMPTY_KEY).tolist()
    above.keys[slots] = np.where(up, come, EMPTY_KEY)
    above.dirty[slots] = up & below.dirty[places]
    above.rows[slots[up]] = below.rows[places[up]]
    above.scores[slots] = 77
    kept = places >= 0
    below.keys[places[kept]] = np.where(down, keys, EMPTY_KEY)[kept]
    below.dirty[places[kept]] = (down & dirty)[kept]
    below.rows[places[kept & down]] = rows[kept & down]
    below.scores[places[kept]] = 88 + ((down & dirty)[kept].astype(np.int64) << CLOCK_BITS)
    above.check(np.flatnonzero(above.keys != EMPTY_KEY))
    below.check(np.flatnonzero(below.keys != EMPTY_KEY))

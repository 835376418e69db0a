"""begin_update: the rows of an update that is queued before the host knows whether it may be done,
with the bits of sums that are checked, then applied."""

import numpy as np
import pytest

from embstore.device.gpu import GpuDevice
from embstore.device.runtime import COMPUTE
from embstore.device.values import Gradients, PoolUpdate
from embstore.score import CLOCK_BITS, COUNT_UP
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.samples import (
    awkward,
    contents_of,
    cpu_devices,
    parameters,
    row_keys,
    slots_with,
)
from tests.kernels.test_apply import KINDS, OPTIMIZERS, table_scalars

SEED, ROWS, CLOCK, SCALE = 12, 250, 70, np.float32(1 / 3)
"""Rows of each of three tables."""
WAYS = "grouped", "unique"


class Pool:
    """Rows of three tables on a device, and an update of them."""

    def __init__(self, device, optimizer, dim, seed=SEED):
        rng, self.device = np.random.default_rng(seed), device
        self.optimizer, self.dim = optimizer, dim
        width = dim + optimizer.state_dim(dim)
        rows = np.abs(awkward(rng, 3 * ROWS, (width + 7) // 4 * 4))
        keys = row_keys(np.repeat([0, 1, 2], ROWS), np.tile(np.arange(ROWS), 3))
        order = rng.permutation(3 * ROWS)
        scores = rng.integers(0, 9, 3 * ROWS) | rng.integers(0, 99, 3 * ROWS) << CLOCK_BITS
        self.memory = slots_with(device, rows, keys=keys[order], scores=scores)
        self.index = device.memory.allocate_index(3 * ROWS)
        assert device.keys.insert(self.index, keys[order], np.arange(3 * ROWS))()
        self.parameters = parameters(3, scalars=table_scalars(optimizer, dim))
        # A hot key of thousands, bags with weights, and bags whose mean was taken.
        self.keys = [np.minimum(rng.zipf(1.5, n), ROWS) - 1 for n in (1500, 150, 150)]
        self.keys[0] = np.concatenate([np.zeros(300, np.int64), [ROWS - 1], self.keys[0] // 2])
        source = np.sort(rng.integers(0, 40, 150)).astype(np.int32)
        values = [awkward(rng, n, dim) * np.float32(1e-6) for n in (len(self.keys[0]), 40, 40)]
        counts = np.bincount(source)[source].astype(np.float32)
        self.gradients = [
            Gradients(values[0]),
            Gradients(values[1], source, awkward(rng, 150) * np.float32(1e-9)),
            Gradients(values[2], source, counts, divide=True),
        ]

    @property
    def segments(self):
        return [(table, ROWS, keys) for table, keys in enumerate(self.keys)]

    def contents(self):
        return contents_of(self.device, self.memory, 3 * ROWS)

    def probed(self):
        batch = self.device.keys.unique(self.segments)
        slots = self.device.memory.allocate(batch.position_count, np.int64)
        self.device.keys.probe(self.index, batch, slots)
        return batch, slots

    def part(self, way="grouped", clock=CLOCK):
        """Return the update, its batch in one of the WAYS."""
        if way == "unique":
            batch, slots = self.probed()
        else:
            room = 512
            batch, slots = self.device.keys.group(self.index, self.memory, room, self.segments, 0)
        sums = self.device.memory.allocate(batch.position_count // 2, np.float32, width=self.dim)
        return PoolUpdate(
            batch, self.gradients, SCALE, self.optimizer.kind, self.memory, slots, self.parameters,
            self.dim, clock, COUNT_UP, sums,
        )  # fmt: skip

    def update(self):
        """Do it step by step."""
        batch, slots = self.probed()
        sums = self.device.memory.allocate(batch.position_count, np.float32, width=self.dim)
        self.device.rows.sum_by_key(batch, self.gradients, SCALE, sums)
        self.device.keys.synchronize(batch)
        found, count = batch.found, len(batch.unique_keys)
        assert (found.missing, found.outside, found.large) == (0, -1, -1)
        self.device.slots.touch(self.memory, slots[:count], CLOCK, COUNT_UP)
        self.device.rows.apply(
            self.optimizer.kind, self.memory, slots[:count], batch.unique_keys, sums[:count],
            self.parameters,
        )  # fmt: skip
        return count


def gpu(**options):
    return GpuDevice(EmulatedRuntime(**options), 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dim", [3, 8, 132])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=KINDS)
def test_rows_scores_and_flags_are_those_of_an_update_in_steps(optimizer, dim, way):
    expected = Pool(cpu_devices()[0], optimizer, dim)
    count = expected.update()
    with_gate = Pool(gpu(seed=dim), optimizer, dim)
    part = with_gate.part(way)
    assert with_gate.device.rows.begin_update([part])() is True
    assert part.batch.is_known and len(part.batch.unique_keys) == count
    assert with_gate.contents() == expected.contents()
    with_gate.device.close()


def test_nothing_is_gained_on_the_cpu():
    pool = Pool(cpu_devices()[0], OPTIMIZERS[0], 4)
    assert pool.device.rows.begin_update([]) is None


def test_a_clock_of_0_leaves_scores():
    pool = Pool(gpu(), OPTIMIZERS[0], 4)
    before = pool.contents()
    assert pool.device.rows.begin_update([pool.part(clock=0)])()
    after = pool.contents()
    assert after[2] == before[2]
    assert after[0] != before[0]
    pool.device.close()


def large_value(value):
    def change(pool):
        pool.gradients[0].rows[300, -1] = value  # of a key that occurs once

    return change


def other_key(key):
    def change(pool):
        pool.keys[2][7] = key

    return change


WRONG = {
    "missing": other_key(ROWS - 1),
    "outside": other_key(ROWS),
    "not a number": large_value(np.nan),
    "infinite": large_value(-np.inf),
    "large": large_value(2.0**60),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_one_pool_leaves_every_pool_as_it_is(wrong, way):
    device = gpu()
    pools = [Pool(device, OPTIMIZERS[place], 8, seed) for seed, place in ((1, 2), (2, 3), (3, 0))]
    WRONG[wrong](pools[1])
    if wrong == "missing":
        device.keys.erase(pools[1].index, row_keys(2, [ROWS - 1]))
    before = [pool.contents() for pool in pools]
    parts = [pool.part(way) for pool in pools]
    assert device.rows.begin_update(parts)() is False
    assert [pool.contents() for pool in pools] == before
    found = [part.batch.found for part in parts]
    is_large = wrong not in ("missing", "outside")
    assert [f.large >= 0 for f in found] == [False, is_large, False]
    assert [f.missing > 0 or f.outside >= 0 for f in found] == [False, not is_large, False]
    device.close()


def test_pools_without_a_key_are_passed_over():
    device = gpu()
    pools = [Pool(device, OPTIMIZERS[2], 8, seed) for seed in (1, 2)]
    parts = [pool.part() for pool in pools]
    empty = device.keys.unique([(0, ROWS, np.empty(0, np.int64))])
    nothing = device.memory.allocate(0, np.float32, width=8)
    fields = {**vars(parts[1]), "batch": empty, "gradients": [], "sums": nothing}
    before = [pool.contents() for pool in pools]
    assert device.rows.begin_update([PoolUpdate(**fields), parts[0]])() is True
    after = [pool.contents() for pool in pools]
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert device.rows.begin_update([PoolUpdate(**fields)])() is True
    device.close()


def test_keys_known_to_be_distinct_need_no_sums():
    expected = Pool(cpu_devices()[0], OPTIMIZERS[3], 8)
    pool = Pool(gpu(), OPTIMIZERS[3], 8)
    for each in (expected, pool):
        each.keys = [np.arange(ROWS)[::-1].copy(), np.arange(5), np.arange(0)]
        each.gradients = [
            Gradients(g.rows[: len(k)]) for g, k in zip(each.gradients, each.keys, strict=True)
        ]
    expected.update()
    device = pool.device
    batch = device.keys.again(device.keys.distinct(pool.segments))
    slots = device.memory.allocate(batch.position_count, np.int64)
    device.keys.probe(pool.index, batch, slots)
    part = PoolUpdate(**{**vars(pool.part()), "batch": batch, "slots": slots})
    assert device.rows.begin_update([part])() is True
    assert pool.contents() == expected.contents()
    device.close()


def test_it_is_three_launches_and_waits_for_no_row():
    runtime = EmulatedRuntime()
    pool = Pool(GpuDevice(runtime, 1), OPTIMIZERS[2], 8)
    part = pool.part()
    pool.device.work.wait()
    launches, stream = runtime.launches, runtime.streams[COMPUTE]
    answer = pool.device.rows.begin_update([part])
    assert runtime.launches - launches == len(["sum_chunks", "combine", "apply"])
    assert answer() is True
    assert stream.done < stream.given
    pool.device.close()

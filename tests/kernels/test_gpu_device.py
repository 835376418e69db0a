"""What of the GPU device is no verb: orders of threads, memory, waits, failures, large offsets.

The emulated GPU runs lanes and blocks in an order that its seed draws, and in fibers lets a thread
give way at every atomic and barrier, so that a race between the threads of a block shows. What
comes out must be what the CPU makes, whatever the order.
"""

import gc

import numpy as np
import pytest

from embstore.arithmetic import update_scalars
from embstore.arrays import EMPTY_KEY
from embstore.config import RowWiseAdagrad
from embstore.device import staging
from embstore.device.base import Gradients
from embstore.device.gpu import RESERVE_BYTES, GpuDevice
from embstore.errors import CapacityError, DeviceError
from embstore.kernels.slots import COUNT_NONE, COUNT_UP, FORESEEN, PENDING, PIN_ONE
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.samples import (
    awkward,
    batch_of,
    bits,
    contents_of,
    cpu_devices,
    host_rows,
    overwrite,
    parameters,
    records,
    row_keys,
    slots_with,
)
from tests.kernels.test_insert import check_integrity

SEED = 31
CPU = cpu_devices()[0]

shuffled = pytest.mark.parametrize(
    "seed, fibers", [(1, False), (2, False), *((seed, True) for seed in range(3, 8))]
)


def made(seed=0, **options):
    return GpuDevice(EmulatedRuntime(seed=seed, **options), threads=1)


def one_table(dim):
    """Return the parameters of a table whose rows are updated by row-wise Adagrad, for t = 1."""
    scalars = update_scalars(RowWiseAdagrad(0.05), 1, 0.05, dim)[None]
    return parameters(1, scalars=scalars, initial_state=np.ones(1, np.float32))


# Orders of threads


def uniques(device, segments):
    batch = device.unique(segments)
    device.settle(batch)
    if batch.found.outside >= 0:
        return batch.found.outside
    return device.download(batch.unique_keys).tolist(), device.download(batch.inverse).tolist()


@shuffled
def test_unique_in_any_order_of_threads(seed, fibers):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    for count in (1, 40, 900, 3_000):
        segments = [(table, 60, np.minimum(rng.zipf(1.3, count), 59)) for table in range(3)]
        assert uniques(device, segments) == uniques(CPU, segments)
        for wrong in rng.integers(0, count, 3):
            segments[1][2][wrong] = rng.choice([-1, 60, 1 << 50])
        assert uniques(device, segments) == uniques(CPU, segments)


@shuffled
def test_index_in_any_order_of_threads(seed, fibers):
    """So small that full buckets are common: keys are moved, and go to the stash."""
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    for slot_count, key_count in ((16, 61), (300, 500)):
        index, expected = device.allocate_index(slot_count), {}
        for turn in range(8):
            keys = rng.permutation(key_count)[: key_count // 2].tolist()
            new = np.array([key for key in keys if key not in expected], np.int64)
            old = np.array([key for key in keys if key in expected], np.int64)
            device.erase(index, old)
            assert device.insert(index, new, new + 1_000 * turn)
            expected = {key: slot for key, slot in expected.items() if key not in old}
            expected |= {key: key + 1_000 * turn for key in new.tolist()}
            check_integrity(device, index, expected)


@shuffled
def test_an_index_of_slots_in_any_order_of_threads(seed, fibers):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    keys = np.where(rng.random(600) < 0.1, EMPTY_KEY, rng.permutation(600))
    memory = slots_with(device, np.zeros((600, 4), np.float32), keys=keys, slab_slots=64)
    index = device.allocate_index(400)
    assert device.insert_slots(index, memory, 600)
    check_integrity(device, index, {key: i for i, key in enumerate(keys.tolist()) if key >= 0})


@shuffled
@pytest.mark.parametrize("kind", ["lru", "lfu", "equal", "wide", "pinned"])
def test_victims_in_any_order_of_threads(seed, fibers, kind):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    slot_count = 5_000
    scores = {
        "lru": rng.integers(0, 1 << 30, slot_count),
        "lfu": rng.zipf(1.4, slot_count).clip(max=2047) << 40 | rng.integers(0, 9, slot_count),
        "equal": np.full(slot_count, 3),
        "wide": rng.integers(0, PIN_ONE, slot_count),
        "pinned": rng.integers(0, 9, slot_count) + rng.choice([0, PIN_ONE, PENDING], slot_count),
    }[kind]
    keys = np.where(rng.random(slot_count) < 0.1, EMPTY_KEY, np.arange(slot_count))
    rows = np.zeros((slot_count, 4), np.float32)
    there, here = (
        slots_with(each, rows, keys=keys, scores=scores, slab_slots=1024) for each in (device, CPU)
    )
    for count in (1, 700, 4_400, slot_count):
        found = device.select_victims(there, slot_count, 5, count)
        expected = CPU.select_victims(here, slot_count, 5, count)
        assert [a.tolist() for a in found] == [a.tolist() for a in expected]


def sums_of(device, keys, gradients, dim):
    batch = batch_of(device, *keys)
    sums = device.allocate(batch.position_count, np.float32, width=dim)
    device.sum_by_key(batch, gradients, np.float32(1 / 3), sums)
    device.settle(batch)
    found = bits(host_rows(device, sums[: len(batch.unique_keys)], dim))
    return found, batch.found.not_finite


@shuffled
@pytest.mark.parametrize("dim", [1, 5, 8, 64])
def test_sums_in_any_order_of_threads(seed, fibers, dim):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    keys = [np.minimum(rng.zipf(1.2, 900), 60), np.repeat([1, 2], 300), rng.integers(0, 9, 5)]
    bags = np.sort(rng.integers(0, 20, 600)).astype(np.int32)
    values = [awkward(rng, n, dim) for n in (900, 20, 5)]
    gradients = [
        Gradients(values[0]),
        Gradients(values[1], bags, rng.integers(1, 9, 600).astype(np.float32), divide=True),
        Gradients(values[2]),
    ]
    assert sums_of(device, keys, gradients, dim) == sums_of(CPU, keys, gradients, dim)
    for place in rng.integers(0, 900, 40):
        values[0][place, rng.integers(dim)] = rng.choice([np.inf, -np.inf, np.nan])
    _, not_finite = sums_of(CPU, keys, gradients, dim)
    assert not_finite >= 0
    assert sums_of(device, keys, gradients, dim)[1] == not_finite


@shuffled
@pytest.mark.parametrize("dim", [1, 33, 64, 200])
def test_rowwise_adagrad_in_any_order_of_threads(seed, fibers, dim):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    rows = awkward(rng, 40, (dim + 4) // 4 * 4)
    rows[:, dim] = np.abs(rows[:, dim])
    g, slots, keys = awkward(rng, 21, dim), rng.permutation(40)[:21], row_keys(0, np.arange(21))
    of_table, results = one_table(dim), []
    for each in (device, CPU):
        memory = slots_with(each, rows)
        arguments = (each.upload(array) for array in (slots, keys, g))
        each.apply("rowwise_adagrad", memory, *arguments, of_table)
        results.append(contents_of(each, memory, 40))
    assert results[0] == results[1]


# Every verb, one after the other


DIM, STRIDE, SLOTS = 5, 8, 128


def everything(device):
    """Run every verb, on slots of its own; return what came out."""
    rng, results = np.random.default_rng(SEED), []
    memory = device.allocate_slots(STRIDE)
    device.reserve_slots(memory, 0, 2 * SLOTS, 16)
    device.add_slots(memory, 0, SLOTS)
    index = device.allocate_index(SLOTS)
    keys, slots = rng.permutation(1_000)[:100], rng.permutation(SLOTS)[:100]
    of_table = one_table(DIM)
    device.place_keys(memory, slots, keys)
    assert device.insert(index, keys, slots)
    device.initialize(memory.rows, slots, keys, of_table, DIM, 1)
    staged = device.staging(90, STRIDE)
    staged[:] = np.abs(records(rng, 90, STRIDE))
    device.scatter_rows(staged, memory.rows, np.where(slots[:90] % 5, slots[:90], -1))

    called, values = rng.integers(0, 1_000, 500), awkward(rng, 500, DIM)
    batch = device.unique([(0, 1_000, called)])
    found = device.allocate(500, np.int64)
    device.probe(index, batch, found)
    sums = device.allocate(500, np.float32, width=DIM)
    device.sum_by_key(batch, [Gradients(values)], np.float32(0.5), sums)
    device.settle(batch)
    count = len(batch.unique_keys)
    found = found[:count]
    results.append(batch.found)
    results.append(device.count_accesses(batch, found, 0, count, None))
    out = device.upload(np.zeros((500, DIM), np.float32))
    device.gather(memory.rows, found, batch, DIM, [out])
    device.touch(memory, found, 3, COUNT_UP)
    results.append(bits(device.download(out)))
    places, absent = device.absent(batch.unique_keys, found, batch.found.missing)
    results += [places.tolist(), absent.tolist()]

    d_keys, d_slots = device.upload(keys[:60]), device.allocate(60, np.int64)
    results.append(device.find(index, d_keys, d_slots))
    device.apply("rowwise_adagrad", memory, d_slots, d_keys, sums[:60], of_table)
    device.set_slots(d_slots, np.array([4, 9]), np.array([-1, 0]))
    rows = device.allocate_rows(60, STRIDE)
    device.scatter_rows(np.zeros((60, STRIDE), np.float32), rows, np.arange(60))
    device.gather_rows(memory.rows, d_slots, rows, 0)
    results.append(bits(device.read_rows(rows, device.upload(np.arange(60)))))
    bags = np.array([0, 3, 3, 20])
    one = batch_of(device, np.arange(20) % 7)
    d_ids = device.upload(np.arange(7))
    pooled, copies = np.empty((3, DIM), np.float32), np.empty((20, STRIDE), np.float32)
    device.gather_pooled(rows, d_ids, one, bags, True, None, pooled)
    device.gather(rows, d_ids, one, STRIDE, [copies])
    results += [bits(pooled), bits(copies)]

    free = np.setdiff1d(np.arange(SLOTS), slots)
    device.place_pending(memory, free, 2_000 + free)
    device.initialize(memory.rows, free, 2_000 + free, of_table, DIM, 1)
    with_gap = np.concatenate([slots[40:60], [-1]])
    results += [device.pin(memory, slots[:50]), device.pin(memory, device.upload(with_gap))]
    results += [
        device.unpin(memory, slots[30:50]),
        device.count_pending(memory, device.upload(free)),
    ]
    device.arrive(memory, free[:9])
    device.foresee(memory, slots, FORESEEN | rng.integers(-90, 90, len(slots)))
    device.age_scores(memory, SLOTS)
    results.append(device.read_range(memory, 0, SLOTS).scores.tolist())
    device.forget_foreseen(memory, SLOTS // 3)
    distinct = device.distinct([(1, 1_000, keys), (0, 1_000, keys[:9])])
    device.settle(distinct)
    results.append(device.download(distinct.unique_keys).tolist())
    victims, scores = device.select_victims(memory, SLOTS, 9, 30)
    results += [victims.tolist(), scores.tolist()]
    for _, host, places in device.row_pieces(memory.rows, victims):
        results.append(bits(host[places]))
    gone = device.read_slots(memory, victims)
    results += [gone.keys.tolist(), gone.dirty.tolist()]
    device.erase(index, gone.keys)
    device.clear_slots(memory, victims)
    device.mark(memory, slots[:7], dirty=True)
    rebuilt = device.allocate_index(200)
    assert device.insert_slots(rebuilt, memory, SLOTS)
    device.reserve_slots(memory, SLOTS, 2 * SLOTS, 4)
    here = device.read_range(memory, 0, SLOTS)
    resident = np.flatnonzero(here.keys != EMPTY_KEY)
    results += [here.keys.tolist(), here.scores[resident].tolist(), here.dirty.tolist()]
    results.append(bits(device.read_rows(memory.rows, device.upload(resident))))
    device.drop_slots(memory, SLOTS // 2, SLOTS)
    return results


@pytest.fixture(scope="module")
def expected():
    return everything(CPU)


@shuffled
def test_every_verb_in_any_order_of_threads(expected, seed, fibers):
    assert everything(made(seed, fibers=fibers)) == expected


# Memory


def test_calls_leave_no_memory_behind(expected):
    device = made()
    runtime = device.runtime
    seen = []
    for _ in range(6):
        assert everything(device) == expected
        gc.collect()
        seen.append(runtime.live_bytes)
    assert len(set(seen[staging.BUFFERS - 1 :])) == 1, seen
    scratch_bytes = device.facts()["scratch_bytes"]
    assert 0 < scratch_bytes <= seen[-1]
    device.close()
    gc.collect()
    assert runtime.live_bytes < seen[-1] - scratch_bytes + 1
    del device
    gc.collect()
    assert runtime.live_bytes == 0


def test_slots_without_memory_are_refused_and_stay_as_they_were():
    device = made(memory_bytes=200_000)
    rows = records(np.random.default_rng(SEED), 64, 64)
    memory = slots_with(device, rows, keys=np.arange(64), scores=np.arange(64), slab_slots=64)
    before = contents_of(device, memory, 64)
    with pytest.raises(CapacityError):
        device.add_slots(memory, 64, 64 * 20)
    assert contents_of(device, memory, 64) == before
    live = device.runtime.live_bytes
    device.add_slots(memory, 64, 64 * 4)
    device.drop_slots(memory, 64, 64 * 4)
    gc.collect()
    assert device.runtime.live_bytes <= live
    assert contents_of(device, memory, 64) == before


def test_slabs_that_cannot_be_split_for_want_of_memory_stay_as_they_were():
    device = made()
    rows = records(np.random.default_rng(SEED), 64, 64)
    memory = slots_with(device, rows, keys=np.arange(64), scores=np.arange(64), slab_slots=32)
    before = contents_of(device, memory, 64)
    device.scratch.clear()  # what is kept would be given back for the pieces
    device.runtime._memory_bytes = device.runtime.live_bytes + 5_000
    with pytest.raises(CapacityError):
        device.reserve_slots(memory, 64, 64, 4)
    device.runtime._memory_bytes = None
    assert contents_of(device, memory, 64) == before
    device.reserve_slots(memory, 64, 64, 4)
    assert contents_of(device, memory, 64) == before


def test_a_call_without_memory_is_refused_and_the_next_is_as_usual(expected):
    """Whichever of its allocations it is that fails."""
    device, outcomes = made(), []
    runtime = device.runtime
    everything(device)
    del device
    gc.collect()
    for spare in range(0, 120_000, 1_500):
        device = GpuDevice(runtime, threads=1)
        runtime._memory_bytes = runtime.live_bytes + spare
        try:
            assert everything(device) == expected
            outcomes.append("done")
        except CapacityError:
            outcomes.append("refused")
        runtime._memory_bytes = None
        assert not device.is_lost
        assert everything(device) == expected
        device.close()
        del device
        gc.collect()
        assert runtime.live_bytes == 0, f"{spare} bytes to spare"
    assert set(outcomes) == {"refused", "done"}


def test_memory_kept_for_calls_gives_way_to_what_is_needed():
    device = made(memory_bytes=1 << 20)
    device.upload(np.zeros(60_000, np.int64))  # kept as scratch from here on
    assert device.facts()["scratch_bytes"] >= 480_000
    larger = device.upload(np.ones(100_000, np.int64))
    assert device.download(larger).sum() == 100_000
    with pytest.raises(CapacityError):
        device.upload(np.zeros(100_000, np.int64))
    assert device.download(larger).sum() == 100_000


def test_a_budget_leaves_room_for_calls():
    total = RESERVE_BYTES + 1_000_000
    device = made(memory_bytes=total)
    device.check_budget(1_000_000, 0)
    with pytest.raises(CapacityError, match=rf"cache_bytes is 1000001; .* of {total} in all"):
        device.check_budget(1_000_001, 0)
    memory = device.allocate_slots(4)
    device.reserve_slots(memory, 0, 1024, 1024)
    device.add_slots(memory, 0, 1024)
    held = device.runtime.live_bytes
    device.check_budget(1_000_000, held)
    with pytest.raises(CapacityError):
        device.check_budget(1_000_000, 0)


# Waits


class WaitingRuntime(EmulatedRuntime):
    """Counts the times that the host has to wait."""

    waits = 0

    def wait(self, mark):
        self.waits += self._streams[mark.stream].done < mark.position
        super().wait(mark)


class Resident:
    """A pool's slots that hold rows 0 to 999, and a call that finds them all."""

    def __init__(self, device):
        rng = np.random.default_rng(SEED)
        self.device, self.rows = device, records(rng, 1_000, 64)
        self.memory = slots_with(device, self.rows, keys=np.arange(1_000), slab_slots=256)
        self.index = device.allocate_index(1_000)
        assert device.insert(self.index, np.arange(1_000), np.arange(1_000))
        self.keys, self.gradients = rng.integers(0, 1_000, 3_000), awkward(rng, 3_000, 64)
        self.slots = device.allocate(3_000, np.int64)
        self.sums = device.allocate(3_000, np.float32, width=64)

    def look(self):
        batch = self.device.unique([(0, 1_000, self.keys)])
        self.device.probe(self.index, batch, self.slots)
        return batch

    def settle(self, batch):
        self.device.settle(batch)
        assert (batch.found.outside, batch.found.missing) == (-1, 0)
        return self.slots[: len(batch.unique_keys)]


def test_an_update_waits_once():
    device = GpuDevice(WaitingRuntime(), threads=1)
    here, runtime = Resident(device), device.runtime
    d_gradients = device.upload(here.gradients)
    for turn in range(20):
        runtime.waits = 0
        batch = here.look()
        device.sum_by_key(batch, [Gradients(d_gradients)], np.float32(1), here.sums)
        assert runtime.waits == 0, f"turn {turn}"
        slots = here.settle(batch)
        device.touch(here.memory, slots, turn, COUNT_UP)
        sums = here.sums[: len(slots)]
        device.apply("sgd", here.memory, slots, batch.unique_keys, sums, parameters(1))
        assert runtime.waits == 1, f"turn {turn}"


@pytest.mark.parametrize("piece_bytes", [1 << 16, 100_000, 1 << 20])
def test_a_lookup_waits_once_and_for_each_piece_of_its_output(monkeypatch, piece_bytes):
    monkeypatch.setattr(staging, "PIECE_BYTES", piece_bytes)
    device = GpuDevice(WaitingRuntime(), threads=1)
    here, runtime = Resident(device), device.runtime
    for _ in range(5):
        out = np.empty((3_000, 64), np.float32)
        runtime.waits = 0
        batch = here.look()
        slots = here.settle(batch)
        device.touch(here.memory, slots, 1, COUNT_NONE)
        assert runtime.waits == 1
        device.gather(here.memory.rows, slots, batch, 64, [out])
        assert runtime.waits == 1 + -(-out.nbytes // piece_bytes)
        assert bits(out) == bits(here.rows[here.keys])


def test_an_output_of_the_device_is_waited_for():
    """Since the stream in which its owner goes on is not ordered behind the device's."""
    device = GpuDevice(WaitingRuntime(), threads=1)
    here, runtime = Resident(device), device.runtime
    d_out = device.allocate(3_000, np.float32, width=64)
    runtime.waits = 0
    batch = here.look()
    device.gather(here.memory.rows, here.settle(batch), batch, 64, [d_out])
    assert runtime.waits == 2
    assert bits(device.download(d_out)) == bits(here.rows[here.keys])


def test_missing_rows_are_staged_without_a_wait_while_there_are_buffers():
    device = GpuDevice(WaitingRuntime(), threads=1)
    here, runtime = Resident(device), device.runtime
    runtime.waits = 0
    for turn in range(staging.BUFFERS):
        staged = device.staging(40, 64)
        staged[:] = turn
        device.scatter_rows(staged, here.memory.rows, np.arange(40) + 40 * turn)
    assert runtime.waits == 0
    device.staging(40, 64)[:] = 9
    assert runtime.waits == 1
    found = device.read_rows(here.memory.rows, device.upload(np.arange(40 * staging.BUFFERS)))
    assert np.array_equal(found[:, 0], np.repeat(np.arange(staging.BUFFERS), 40))


# Failures


def launches_of_everything():
    device = made()
    everything(device)
    return device.runtime.launches


def test_whichever_launch_fails_the_device_is_lost():
    for launch in range(1, launches_of_everything() + 1):
        device = made()
        device.runtime.fail_at(launch)
        with pytest.raises(DeviceError):
            everything(device)
        assert device.is_lost, f"launch {launch}"
        device.close()


def test_a_lost_device_answers_nothing_and_can_be_closed():
    device = made()
    here = Resident(device)
    batch, memory, slots, keys = here.look(), here.memory, np.arange(4), np.arange(4)
    device.settle(batch)
    d_slots, out = here.slots[:4], np.empty((3_000, 64), np.float32)
    device.runtime.fail_at(1)
    assert not device.is_lost
    calls = [
        lambda: device.gather(memory.rows, here.slots, batch, 64, [out]),
        lambda: device.gather(memory.rows, here.slots, batch, 64, [out]),
        lambda: device.facts(),
        lambda: device.check_budget(1, 0),
        lambda: device.add_slots(memory, 1024, 1280),
        lambda: device.reserve_slots(memory, 1024, 2048, 4),
        lambda: device.allocate_index(10),
        lambda: device.upload(keys),
        lambda: device.download(d_slots),
        lambda: here.look(),
        lambda: device.settle(batch),
        lambda: device.find(here.index, d_slots, d_slots),
        lambda: device.absent(d_slots, d_slots, 2),
        lambda: device.set_slots(d_slots, slots, slots),
        lambda: device.count_accesses(batch, here.slots, 0, 4, None),
        lambda: device.sum_by_key(batch, [Gradients(here.gradients)], np.float32(1), here.sums),
        lambda: device.apply("sgd", memory, d_slots, d_slots, here.sums, parameters(1)),
        lambda: device.scatter_rows(here.rows[:4], memory.rows, slots),
        lambda: device.initialize(memory.rows, slots, keys, parameters(1), 4, 0),
        lambda: device.read_rows(memory.rows, d_slots),
        lambda: next(device.row_pieces(memory.rows, slots)),
        lambda: device.insert(here.index, keys, slots),
        lambda: device.insert_slots(here.index, memory, 4),
        lambda: device.erase(here.index, keys),
        lambda: device.place_keys(memory, slots, keys),
        lambda: device.place_pending(memory, slots, keys),
        lambda: device.arrive(memory, slots),
        lambda: device.count_pending(memory, d_slots),
        lambda: device.pin(memory, slots),
        lambda: device.unpin(memory, d_slots),
        lambda: device.foresee(memory, slots, slots),
        lambda: device.forget_foreseen(memory, 4),
        lambda: device.distinct([(0, 4, keys)]),
        lambda: device.clear_slots(memory, slots),
        lambda: device.mark(memory, slots, dirty=True),
        lambda: device.read_slots(memory, slots),
        lambda: device.read_range(memory, 0, 4),
        lambda: device.touch(memory, d_slots, 1, COUNT_UP),
        lambda: device.set_counts(memory, slots, slots),
        lambda: device.age_scores(memory, 4),
        lambda: device.select_victims(memory, 4, 1, 2),
        lambda: device.warm_up(),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(DeviceError):
            call()
        assert device.is_lost, f"call {number}"
    device.drop_slots(memory, 0, 1024)
    device.close()


# Offsets beyond 2**31 and 2**32, in bytes and in elements


WIDE_STRIDE, WIDE_DIM, MANY = 4100, 4096, 1 << 20
FAR = [MANY - 1, *(limit // size + 1 for limit in (1 << 31, 1 << 32) for size in (4100, 16400))]


@pytest.fixture(scope="module")
def far():
    """Return a device with slots of which only the named take memory: one slab of 16 GiB."""
    device = made()
    memory = device.allocate_slots(WIDE_STRIDE)
    device.reserve_slots(memory, 0, MANY, MANY)
    device.add_slots(memory, 0, MANY)
    yield device, memory
    device.close()


@pytest.fixture
def far_rows(far):
    """Return rows that have been scattered to the far slots."""
    device, memory = far
    rows = records(np.random.default_rng(SEED), len(FAR), WIDE_STRIDE)
    device.scatter_rows(rows, memory.rows, np.array(FAR))
    return rows


def test_rows_at_far_slots_are_scattered_and_read(far, far_rows):
    device, memory = far
    assert bits(device.read_rows(memory.rows, np.array(FAR))) == bits(far_rows)
    found = [host[places] for _, host, places in device.row_pieces(memory.rows, np.array(FAR))]
    assert bits(np.concatenate(found)) == bits(far_rows)


@pytest.mark.parametrize("dim", [WIDE_DIM, WIDE_DIM - 1])
def test_rows_at_far_slots_are_gathered_and_pooled(far, far_rows, dim):
    device, memory = far
    batch = batch_of(device, np.array([0, 1, 2, 3, 4, 2]))
    slots, out = device.upload(np.array(FAR)), np.empty((6, dim), np.float32)
    device.gather(memory.rows, slots, batch, dim, [out])
    assert bits(out) == bits(far_rows[[0, 1, 2, 3, 4, 2], :dim])
    pooled = np.empty((6, dim), np.float32)
    device.gather_pooled(memory.rows, slots, batch, np.arange(7), False, None, pooled)
    assert bits(pooled) == bits(out)


def test_outputs_at_far_positions_are_gathered(far, far_rows):
    """Of a million positions all but a few are absent, and left alone."""
    device, memory = far
    ids = np.zeros(MANY, np.int64)
    ids[FAR] = np.arange(1, len(FAR) + 1)
    batch = batch_of(device, ids)
    by_id = np.full(len(FAR) + 1, -1)
    by_id[device.download(batch.inverse)[FAR]] = FAR
    d_out = device.allocate(MANY, np.float32, width=WIDE_DIM)
    device.gather(memory.rows, device.upload(by_id), batch, WIDE_DIM, [d_out])
    for row, position in zip(far_rows, FAR, strict=True):
        found = device.download(d_out[position : position + 1])
        assert bits(found[0]) == bits(row[:WIDE_DIM])
    rows, slots = device.allocate_rows(MANY, WIDE_STRIDE), np.full(MANY, -1)
    slots[FAR] = FAR
    device.gather_rows(memory.rows, device.upload(slots), rows, 0)
    assert bits(device.read_rows(rows, np.array(FAR))) == bits(far_rows)


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad"])
def test_rows_at_far_slots_are_updated(far, far_rows, kind):
    device, memory = far
    g = records(np.random.default_rng(SEED + 1), len(FAR), WIDE_DIM)
    of_table, keys = one_table(WIDE_DIM), np.arange(len(FAR))
    near = slots_with(CPU, np.abs(far_rows))
    device.scatter_rows(np.abs(far_rows), memory.rows, np.array(FAR))
    CPU.apply(kind, near, keys, keys, g, of_table)
    arguments = (device.upload(array) for array in (np.array(FAR), keys, g))
    device.apply(kind, memory, *arguments, of_table)
    expected = CPU.read_rows(near.rows, keys)
    assert bits(device.read_rows(memory.rows, np.array(FAR))) == bits(expected)
    assert device.read_slots(memory, np.array(FAR)).dirty.all()


def test_far_slots_are_placed_and_chosen(far):
    device, memory = far
    device.place_keys(memory, np.array(FAR), np.arange(len(FAR)) << 40)
    device.touch(memory, np.array(FAR), 7, COUNT_NONE)
    victims, scores = device.select_victims(memory, MANY, 8, 3)
    assert victims.tolist() == sorted(FAR)[:3] and scores.tolist() == [7] * 3
    assert device.pin(memory, victims) == 3
    assert device.select_victims(memory, MANY, 8, 5)[0].tolist() == sorted(FAR)[3:]
    found = device.read_slots(memory, np.array(FAR))
    assert found.keys.tolist() == [i << 40 for i in range(len(FAR))]
    device.clear_slots(memory, np.array(FAR))


@pytest.mark.parametrize("dim", [WIDE_DIM, WIDE_DIM + 1])
def test_gradients_at_far_rows_are_summed(far, dim):
    """A bag's gradient stands where its number says."""
    device, _ = far
    d_rows = device.allocate(MANY + 2, np.float32, width=dim)
    far_bags = [(1 << 31) // dim, (1 << 32) // dim, (1 << 31) // dim + 1, (1 << 30) // dim + 1]
    values = awkward(np.random.default_rng(SEED), len(far_bags), dim)
    for bag, value in zip(far_bags, values, strict=True):
        overwrite(device, d_rows[bag : bag + 1], value)
    order = np.array([0, 1, 2, 3] * 40)
    source = np.array(far_bags, np.int32)[order]
    keys = [np.array([5, 6, 5, 7, 5, 5, 5, 7] * 20)]
    found = sums_of(device, keys, [Gradients(d_rows, source)], dim)
    expected = sums_of(CPU, keys, [Gradients(values, order.astype(np.int32))], dim)
    assert found == expected

"""What the tests of the GPU device share: devices, resident rows, and every verb once."""

from functools import cache

import numpy as np

from embstore.arithmetic import update_scalars
from embstore.arrays import EMPTY_KEY
from embstore.config import RowWiseAdagrad
from embstore.device.gpu import GpuDevice
from embstore.device.values import Gradients
from embstore.layout import Layout
from embstore.score import COUNT_UP, PENDING
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.samples import (
    awkward,
    batch_of,
    bits,
    cpu_devices,
    down,
    host_rows,
    parameters,
    records,
    up,
)

SEED = 31
CPU = cpu_devices()[0]
DIM, STRIDE, SLOTS = 5, 8, 128
LAYOUT = Layout(DIM, 1, "rowwise_adagrad")


def made(seed=0, **options):
    return GpuDevice(EmulatedRuntime(seed=seed, **options), threads=1)


def one_table(dim):
    """Return the parameters of a table whose rows are updated by row-wise Adagrad, for t = 1."""
    scalars = update_scalars(RowWiseAdagrad(0.05), 1, 0.05, dim)[None]
    return parameters(1, scalars=scalars, initial_state=np.ones(1, np.float32))


def sums_of(device, keys, gradients, dim):
    batch = batch_of(device, *keys)
    sums = device.memory.allocate(batch.position_count, np.float32, width=dim)
    device.rows.sum_by_key(batch, gradients, np.float32(1 / 3), sums)
    device.keys.synchronize(batch)
    found = bits(host_rows(device, sums[: len(batch.unique_keys)], dim))
    return found, batch.found.large


class EveryVerb:
    """Slots of a device, and every verb on them; `results` has what came out."""

    def __init__(self, device):
        self.device, self.rng, self.results = device, np.random.default_rng(SEED), []
        self.memory = memory = device.memory.allocate_slots(LAYOUT)
        device.memory.reserve_slots(memory, 0, 2 * SLOTS, 16)
        device.memory.add_slots(memory, 0, SLOTS)
        self.index = device.memory.allocate_index(SLOTS)
        self.keys = self.rng.permutation(1_000)[:100]
        self.slots = slots = self.rng.permutation(SLOTS)[:100]
        self.of_table = one_table(DIM)
        device.slots.place_keys(memory, slots, self.keys, 0)
        assert device.keys.insert(self.index, self.keys, slots)()
        device.rows.initialize(memory.rows, slots, self.keys, self.of_table, LAYOUT)
        staged = device.memory.staging(90, LAYOUT)
        staged[:] = np.abs(records(self.rng, 90, STRIDE))
        device.rows.scatter_rows(staged, memory.rows, np.where(slots[:90] % 5, slots[:90], -1))

    def call(self):
        """Look keys up, of which some are absent; return the sums of their gradients."""
        device = self.device
        called, values = self.rng.integers(0, 1_000, 500), awkward(self.rng, 500, DIM)
        batch = device.keys.unique([(0, 1_000, called)])
        found = device.memory.allocate(500, np.int64)
        device.keys.probe(self.index, batch, found)
        sums = device.memory.allocate(500, np.float32, width=DIM)
        device.rows.sum_by_key(batch, [Gradients(values)], np.float32(0.5), sums)
        device.keys.synchronize(batch)
        count = len(batch.unique_keys)
        found = found[:count]
        self.results.append(batch.found)
        self.results.append(device.keys.count_accesses(batch, found, 0, count, None)())
        out = up(device, np.zeros((500, DIM), np.float32))
        device.rows.gather(self.memory.rows, found, batch, DIM, [out])
        device.slots.touch(self.memory, found, 3, COUNT_UP)
        self.results.append(bits(down(device, out)))
        places, absent = device.keys.absent(batch.unique_keys, found, batch.found.missing)()
        self.results += [places.tolist(), absent.tolist()]
        return sums

    def train(self, sums):
        """Apply sums, and read rows in every other way."""
        device, memory = self.device, self.memory
        d_keys, d_slots = up(device, self.keys[:60]), device.memory.allocate(60, np.int64)
        self.results.append(device.keys.find(self.index, d_keys, d_slots))
        device.rows.apply("rowwise_adagrad", memory, d_slots, d_keys, sums[:60], self.of_table)
        device.keys.set_slots(d_slots, np.array([4, 9]), np.array([-1, 0]))
        rows = device.memory.allocate_rows(60, LAYOUT)
        device.rows.scatter_rows(np.zeros((60, STRIDE), np.float32), rows, np.arange(60))
        device.rows.gather_rows(memory.rows, d_slots, rows, 0)
        self.results.append(bits(device.rows.read_rows(rows, up(device, np.arange(60)))))
        device.rows.copy_slots(memory.rows, self.slots[:40], rows, np.arange(40))
        self.results.append(bits(device.rows.read_rows(rows, up(device, np.arange(60)))))
        one, d_ids = batch_of(device, np.arange(20) % 7), up(device, np.arange(7))
        pooled, copies = np.empty((3, DIM), np.float32), np.empty((20, STRIDE), np.float32)
        bags = np.array([0, 3, 3, 20])
        device.rows.gather_pooled(rows, d_ids, one, bags, True, None, pooled)
        device.rows.gather(rows, d_ids, one, STRIDE, [copies])
        self.results += [bits(pooled), bits(copies)]

    def pin(self):
        """Have rows on their way, pinned and foreseen."""
        device, memory, slots = self.device, self.memory, self.slots
        free = np.setdiff1d(np.arange(SLOTS), slots)
        device.slots.place_keys(memory, free, 2_000 + free, PENDING)
        device.rows.initialize(memory.rows, free, 2_000 + free, self.of_table, LAYOUT)
        with_gap = np.concatenate([slots[40:60], [-1]])
        self.results += [
            device.slots.pin(memory, slots[:50])(),
            device.slots.pin(memory, up(device, with_gap))(),
            device.slots.unpin(memory, slots[30:50])(),
            device.slots.count_pending(memory, up(device, free)),
        ]
        device.slots.arrive(memory, free[:9])
        device.slots.foresee(memory, slots, self.rng.integers(-90, 90, len(slots)), 8)
        device.slots.age_scores(memory, SLOTS)
        self.results.append(device.slots.read_range(memory, 0, SLOTS).scores.tolist())
        device.slots.foresee(memory, slots[:9], np.full(9, -1), 9)
        distinct = device.keys.distinct([(1, 1_000, self.keys), (0, 1_000, self.keys[:9])])
        device.keys.synchronize(distinct)
        self.results.append(down(device, distinct.unique_keys).tolist())

    def evict(self):
        """Choose victims, clear their slots, and drop slots."""
        device, memory = self.device, self.memory
        found = device.slots.select_victims(memory, SLOTS, 9, 30)()
        victims, scores = found.slots, found.scores
        self.results += [victims.tolist(), scores.tolist()]
        for _, host, places in device.rows.row_pieces(memory.rows, victims):
            self.results.append(bits(host[places]))
        gone = device.slots.read_slots(memory, victims)()
        self.results += [gone.keys.tolist(), gone.dirty.tolist()]
        device.keys.erase(self.index, gone.keys)
        device.slots.clear_slots(memory, victims)
        device.slots.mark(memory, self.slots[:7], dirty=True)
        rebuilt = device.memory.allocate_index(200)
        assert device.keys.insert_slots(rebuilt, memory, SLOTS)
        device.memory.reserve_slots(memory, SLOTS, 2 * SLOTS, 4)
        here = device.slots.read_range(memory, 0, SLOTS)
        resident = np.flatnonzero(here.keys != EMPTY_KEY)
        self.results += [here.keys.tolist(), here.scores[resident].tolist(), here.dirty.tolist()]
        self.results.append(bits(device.rows.read_rows(memory.rows, up(device, resident))))
        device.memory.drop_slots(memory, SLOTS // 2, SLOTS)


def everything(device):
    """Run every verb, on slots of its own; return what came out."""
    here = EveryVerb(device)
    here.train(here.call())
    here.pin()
    here.evict()
    return here.results


@cache
def expected():
    """Return what comes out on the CPU."""
    return everything(CPU)

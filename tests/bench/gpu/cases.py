"""The calls that are measured on one pool, and the bytes that each call moves.

The pool is as after a long run: it has `slots` slots, all resident, in a random order, so that the
rows of a call are scattered over gigabytes. Batches, outputs and sums are used in turn.

Some calls copy between host and device, or wait in between. For these calls the result is the sum
of their launches, each measured alone. All other calls are measured as a whole, with their launches
one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as counter
from typing import Any

import numpy as np

from embstore.arithmetic import update_scalars
from embstore.config import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd
from embstore.device.gpu import GpuDevice
from embstore.device.slabs import Slabs
from embstore.device.staging import BUFFERS
from embstore.device.values import Batch, Gradients, TableParameters
from embstore.layout import Layout
from embstore.score import COUNT_NONE
from tests.bench.gpu.law import Keys, Zipf
from tests.bench.gpu.scale import Scale

TABLE_ROWS = 1 << 40
PLACED_KEYS = 1 << 20
OPTIMIZERS = (Sgd(0.01), Adagrad(0.01), RowWiseAdagrad(0.01), Adam(0.01), Ftrl(0.01))
ENTRY_BYTES = 16
"""Of a place of `unique`'s hash table, which are filled before it is used."""


@dataclass(frozen=True)
class Call:
    """A batch on the device, and what belongs to it."""

    d_keys: Any
    batch: Batch
    slots: Any
    distinct: Batch
    """The same unique keys, each once."""
    out: Any
    d_gradients: Any
    sums: Any


@dataclass(frozen=True)
class Case:
    """A call that is measured: `work` gives the call whose turn it is to the device."""

    name: str
    work: Callable[[Call], Any]
    bytes: int
    """Of a call."""
    rows: int | None = None
    """Keys or rows that it is about, where their rate is asked for."""
    whole: bool = True


class FullPool:
    """A full pool of rows with row-wise Adagrad, and calls on it."""

    def __init__(self, device: GpuDevice, scale: Scale, dim: int) -> None:
        self.device, self.scale, self.dim = device, scale, dim
        self.layout = Layout(dim, 1, "rowwise_adagrad")
        self._rng = np.random.default_rng(scale.seed)
        batches = Zipf(scale).batches(scale.batches, scale.keys)
        self._fill(np.unique(np.concatenate(batches)))
        gradients = self._rng.standard_normal((scale.keys, dim), np.float32)
        self.calls = [self._call(keys, gradients) for keys in batches]
        self.unique_count = len(self.calls[0].batch.unique_keys)

    def _fill(self, keys: Keys) -> None:
        """Have every slot hold a key, `keys` among them, each at one of a few scores."""
        device, slots = self.device, self.scale.slots
        self.memory = new_slots(device, self.scale, self.layout, slots)
        others = np.arange(self.scale.ranks, self.scale.ranks + slots - len(keys))
        held = self._rng.permutation(np.concatenate([keys, others]))
        for low in range(0, slots, PLACED_KEYS):
            high = min(low + PLACED_KEYS, slots)
            device.slots.place_keys(self.memory, np.arange(low, high), held[low:high], 0)
        step = -(-slots // self.scale.clocks)
        for clock, low in enumerate(range(0, slots, step)):
            touched = np.arange(low, min(low + step, slots))
            device.slots.touch(self.memory, touched, clock + 1, COUNT_NONE)
        self.index = device.memory.allocate_index(slots)
        assert device.keys.insert_slots(self.index, self.memory, slots), "the stash is full"
        moved = self._rng.choice(slots, self.scale.moved_rows, replace=False)
        self.moved_slots, self.moved_keys = moved.astype(np.int64), held[moved]

    def _call(self, keys: Keys, gradients: Any) -> Call:
        d_keys = self.device.memory.upload(keys)
        batch, slots = self._probed(d_keys)
        self.device.rows.initialize(
            self.memory.rows,
            self.device.memory.download(slots),
            self.device.memory.download(batch.unique_keys),
            parameters(RowWiseAdagrad(0.01), self.dim),
            self.layout,
        )
        distinct, _ = self._probed(batch.unique_keys)
        memory, unique = self.device.memory, len(batch.unique_keys)
        return Call(
            d_keys,
            batch,
            slots,
            distinct,
            out=memory.allocate(len(keys), np.float32, width=self.dim),
            d_gradients=memory.upload(gradients),
            sums=memory.allocate(unique, np.float32, width=self.dim),
        )

    def _probed(self, d_keys: Any) -> tuple[Batch, Any]:
        device = self.device
        batch = device.keys.unique([(0, TABLE_ROWS, d_keys)])
        slots = device.memory.allocate(len(d_keys), np.int64)
        device.keys.probe(self.index, batch, slots)
        device.keys.synchronize(batch)
        assert batch.found.missing == 0, "a key of the call is not resident"
        return batch, slots[: len(batch.unique_keys)]

    def taken(self, number: int) -> Call:
        return self.calls[number % len(self.calls)]


def new_slots(device: GpuDevice, scale: Scale, layout: Layout, slots: int) -> Slabs:
    """Return the memory of so many free slots."""
    memory = device.memory.allocate_slots(layout)
    device.memory.reserve_slots(memory, 0, slots, min(scale.slab_slots, slots))
    device.memory.add_slots(memory, 0, slots)
    return memory


def parameters(optimizer: Any, dim: int) -> TableParameters:
    """Return the parameters of one table: uniform rows, the scalars of its first update."""
    return TableParameters(
        scalars=update_scalars(optimizer, 1, 0.01, dim)[None],
        initializer_kinds=np.array([1], np.int8),
        initializer_values=np.array([[-0.01, 0.02]], np.float32),
        seeds=np.array([7], np.uint64),
        initial_state=np.zeros(1, np.float32),
    )


def cases_of(pool: FullPool) -> list[Case]:
    """Return every case but the optimizers'."""
    groups = _key_cases, _row_cases, _host_row_cases, _slot_cases, _session_cases
    return [case for group in groups for case in group(pool)]


def _key_cases(pool: FullPool) -> list[Case]:
    keys, n, u = pool.device.keys, pool.scale.keys, pool.unique_count
    places = n + n // 2 + 1
    many = pool.device.memory.allocate(n, np.int64)
    # What the header counts beyond the L2 cache, the sum, the fill.
    unique_bytes = 36 * n + 8 * u + 12 * n + ENTRY_BYTES * places
    return [
        Case("unique", lambda c: keys.unique([(0, TABLE_ROWS, c.d_keys)]), unique_bytes),
        Case("probe", lambda c: keys.probe(pool.index, c.batch, c.slots), 180 * u, u),
        Case(
            "probe of every key",
            lambda c: keys.find(pool.index, c.d_keys, many),
            180 * n,
            n,
            whole=False,
        ),
    ]


def _row_cases(pool: FullPool) -> list[Case]:
    device, n, u = pool.device, pool.scale.keys, pool.unique_count
    rows, d_rows, one = device.rows, pool.memory.rows, np.float32(1.0)
    dim, stride, bag = pool.dim, pool.layout.stride, pool.scale.bag_keys
    bags = n // bag
    offsets = np.arange(bags + 1) * bag
    offsets[-1] = n
    whole_rows = device.memory.allocate_rows(max(len(c.slots) for c in pool.calls), pool.layout)

    def gather_pooled(c: Call) -> None:
        rows.gather_pooled(d_rows, c.slots, c.batch, offsets, False, None, c.out[:bags])

    def sum_by_key(c: Call) -> None:
        rows.sum_by_key(c.batch, [Gradients(rows=c.d_gradients)], one, c.sums)

    grouping = 12 * n + (12 * n + 8 * u)
    return [
        Case(
            "gather",
            lambda c: rows.gather(d_rows, c.slots, c.batch, dim, [c.out]),
            4 * n + 8 * u + 4 * dim * (u + n),
            n,
        ),
        Case(
            "gather of unique rows",
            lambda c: rows.gather(d_rows, c.slots, c.distinct, dim, [c.out[: len(c.slots)]]),
            12 * u + 8 * dim * u,
            u,
        ),
        Case(
            "gather_rows",
            lambda c: rows.gather_rows(d_rows, c.slots, whole_rows, 0),
            8 * u + 8 * stride * u,
            u,
        ),
        Case("gather_pooled", gather_pooled, 4 * n + 8 * u + 4 * dim * (u + bags), n, whole=False),
        Case("sum_by_key", sum_by_key, grouping + 8 * n + 8 * u + 4 * dim * (n + u), n),
    ]


def _host_row_cases(pool: FullPool) -> list[Case]:
    device, u, stride = pool.device, pool.unique_count, pool.layout.stride
    call, rows = pool.calls[0], pool.memory.rows
    slots, keys = device.memory.download(call.slots), device.memory.download(call.batch.unique_keys)
    given = parameters(RowWiseAdagrad(0.01), pool.dim)
    calls = counter()

    def scatter_rows(_: Call) -> None:
        staged = device.memory.staging(u, pool.layout)
        if next(calls) < BUFFERS:
            staged[:] = 0.5
        device.rows.scatter_rows(staged, rows, slots)

    def initialize(_: Call) -> None:
        device.rows.initialize(rows, slots, keys, given, pool.layout)

    return [
        Case("scatter_rows", scatter_rows, 8 * u + 8 * stride * u, u, whole=False),
        Case("initialize", initialize, 16 * u + 4 * stride * u, u, whole=False),
    ]


def _slot_cases(pool: FullPool) -> list[Case]:
    keys, slots, memory = pool.device.keys, pool.device.slots, pool.memory
    u, m, count = pool.unique_count, pool.scale.moved_rows, pool.scale.slots
    clocks = counter(pool.scale.clocks + 1)

    def erase_and_insert(_: Call) -> None:
        keys.erase(pool.index, pool.moved_keys)
        assert keys.insert(pool.index, pool.moved_keys, pool.moved_slots)()

    return [
        # A slot's number, and its score's sector of 32 bytes, read and written.
        Case("touch", lambda c: slots.touch(memory, c.slots, next(clocks), COUNT_NONE), 72 * u, u),
        Case("erase + insert", erase_and_insert, 472 * m, m, whole=False),
        Case(
            "select_victims",
            lambda _: slots.select_victims(memory, count, 1 << 39, m)(),
            8 * count * 4,  # passes: of so few clocks one counting finds the threshold
            count,
            whole=False,
        ),
    ]


def _session_cases(pool: FullPool) -> list[Case]:
    """Return the cases of what a session does to scores; its ranks stay, so they come last."""
    slots, memory, u = pool.device.slots, pool.memory, pool.unique_count
    on_host = {id(call): pool.device.memory.download(call.slots) for call in pool.calls}
    ranks = np.arange(max(map(len, on_host.values())))

    def pin_and_unpin(c: Call) -> None:
        slots.pin(memory, c.slots)()
        slots.unpin(memory, c.slots)()

    works = {
        "pin + unpin": (pin_and_unpin, 144 * u),
        "arrive": (lambda c: slots.arrive(memory, on_host[id(c)]), 72 * u),
        "count_pending": (lambda c: slots.count_pending(memory, c.slots), 40 * u),
        "foresee": (lambda c: slots.foresee(memory, c.slots, ranks[: len(c.slots)], 4), 80 * u),
    }
    return [Case(name, work, moved, u, whole=False) for name, (work, moved) in works.items()]


def apply_case(pool: FullPool, optimizer: Any) -> Case:
    """Return the case of an optimizer, on a pool of its own with twice the unique rows."""
    device, dim, scale = pool.device, pool.dim, pool.scale
    state_dim = optimizer.state_dim(dim)
    most = max(len(call.slots) for call in pool.calls)
    slots = 1 << (2 * most - 1).bit_length()
    layout = Layout(dim, state_dim, optimizer.kind)
    memory = new_slots(device, scale, layout, slots)
    rng = np.random.default_rng(scale.seed)
    places = [rng.permutation(slots)[: len(call.slots)] for call in pool.calls]
    given = parameters(optimizer, dim)
    for here in places:
        keys = np.arange(len(here))
        device.rows.initialize(memory.rows, here, keys, given, layout)
    d_slots = [device.memory.upload(here) for here in places]
    for call in pool.calls:
        device.work.runtime.fill(call.sums, 0)
    slots_of = {id(call): here for call, here in zip(pool.calls, d_slots, strict=True)}

    def apply(c: Call) -> None:
        keys = c.batch.unique_keys
        device.rows.apply(optimizer.kind, memory, slots_of[id(c)], keys, c.sums, given)

    u = pool.unique_count
    moved = 16 * u + 4 * dim * u + 8 * (dim + state_dim) * u
    return Case(f"apply_{optimizer.kind}", apply, moved, u)

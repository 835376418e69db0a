"""The calls that are measured on one layout, and the bytes that each moves.

The pool is as in a long run: `slots` slots, all resident, in a random order, so that the rows of a
call are anywhere in gigabytes; batches, outputs and sums are taken in turn.

A call that copies between host and device, or waits in between, tells the sum of its launches, each
measured alone; of the others the whole call is measured, its launches one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as counter
from typing import Any

import numpy as np

from embstore.arithmetic import update_scalars
from embstore.arrays import row_stride
from embstore.config import Adagrad, Adam, RowWiseAdagrad, Sgd
from embstore.device.base import Batch, Gradients, TableParameters
from embstore.device.gpu import GpuDevice
from embstore.device.slabs import Slabs
from embstore.kernels.slots import COUNT_NONE, FORESEEN
from tests.bench.gpu.law import Keys, Zipf
from tests.bench.gpu.scale import Scale

TABLE_ROWS = 1 << 40
PLACED_KEYS = 1 << 20
OPTIMIZERS = (Sgd(0.01), Adagrad(0.01), RowWiseAdagrad(0.01), Adam(0.01))
ENTRY_BYTES = 8 + 4
"""Of a place of `unique`'s hash table that are filled before it is used."""


@dataclass(frozen=True)
class Case:
    """A call that is measured: `work(i)` gives the i-th one to the device."""

    name: str
    work: Callable[[int], Any]
    bytes_of: Callable[[dict[str, list[float]]], int]
    """The bytes of a call whose launches are given."""
    whole: bool = True
    rows: int | None = None
    """Keys or rows that it is about, where their rate is asked for."""


@dataclass(frozen=True)
class Call:
    """A batch on the device, and what belongs to it."""

    d_keys: Any
    batch: Batch
    slots: Any
    distinct: Batch
    """The same unique keys, each once."""


class Layout:
    """A full pool of rows with row-wise Adagrad, and calls on it."""

    def __init__(self, device: GpuDevice, scale: Scale, dim: int) -> None:
        self.device, self.scale, self.dim = device, scale, dim
        self.stride = row_stride(dim + 1)
        self._rng = np.random.default_rng(scale.seed)
        batches = Zipf(scale).batches(scale.batches, scale.keys)
        self._fill(np.unique(np.concatenate(batches)))
        self.calls = [self._call(keys) for keys in batches]
        self.unique_count = len(self.calls[0].batch.unique_keys)
        self.outs = [
            device.allocate(scale.keys, np.float32, width=dim) for _ in range(len(self.calls))
        ]
        gradients = self._rng.standard_normal((scale.keys, dim), np.float32)
        self.d_gradients = [device.upload(gradients) for _ in self.calls]
        self.sums = [
            device.allocate(len(c.batch.unique_keys), np.float32, width=dim) for c in self.calls
        ]

    def _fill(self, keys: Keys) -> None:
        """Have every slot hold a key, `keys` among them, each at one of a few scores."""
        device, slots = self.device, self.scale.slots
        self.memory = new_slots(device, self.scale, self.stride, slots)
        others = np.arange(self.scale.ranks, self.scale.ranks + slots - len(keys))
        held = self._rng.permutation(np.concatenate([keys, others]))
        for low in range(0, slots, PLACED_KEYS):
            high = min(low + PLACED_KEYS, slots)
            device.place_keys(self.memory, np.arange(low, high), held[low:high])
        step = -(-slots // self.scale.clocks)
        for clock, low in enumerate(range(0, slots, step)):
            touched = np.arange(low, min(low + step, slots))
            device.touch(self.memory, touched, clock + 1, COUNT_NONE)
        self.index = device.allocate_index(slots)
        assert device.insert_slots(self.index, self.memory, slots), "the stash is full"
        moved = self._rng.choice(slots, self.scale.moved_rows, replace=False)
        self.moved_slots, self.moved_keys = moved.astype(np.int64), held[moved]

    def _call(self, keys: Keys) -> Call:
        d_keys = self.device.upload(keys)
        batch, slots = self._probed(d_keys)
        self.device.initialize(
            self.memory.rows,
            self.device.download(slots),
            self.device.download(batch.unique_keys),
            parameters(RowWiseAdagrad(0.01), self.dim),
            self.dim,
            1,
        )
        distinct, _ = self._probed(batch.unique_keys)
        return Call(d_keys, batch, slots, distinct)

    def _probed(self, d_keys: Any) -> tuple[Batch, Any]:
        device = self.device
        batch = device.unique([(0, TABLE_ROWS, d_keys)])
        slots = device.allocate(len(d_keys), np.int64)
        device.probe(self.index, batch, slots)
        device.settle(batch)
        assert batch.found.missing == 0, "a key of the call is not resident"
        return batch, slots[: len(batch.unique_keys)]

    def taken(self, number: int) -> Call:
        """Return the call whose turn it is."""
        return self.calls[number % len(self.calls)]


def new_slots(device: GpuDevice, scale: Scale, stride: int, slots: int) -> Slabs:
    """Return the memory of so many free slots."""
    memory = device.allocate_slots(stride)
    device.reserve_slots(memory, 0, slots, min(scale.slab_slots, slots))
    device.add_slots(memory, 0, slots)
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


def cases_of(layout: Layout) -> list[Case]:
    """Return every case but the optimizers'."""
    return [
        *_key_cases(layout),
        *_row_cases(layout),
        *_host_row_cases(layout),
        *_slots(layout),
        *_sessions(layout),
    ]


def _key_cases(layout: Layout) -> list[Case]:
    device, n, u = layout.device, layout.scale.keys, layout.unique_count
    places = 1 << (2 * n - 1).bit_length()

    def probe(number: int) -> None:
        call = layout.taken(number)
        device.probe(layout.index, call.batch, call.slots)

    def probe_all(number: int) -> None:
        device.find(layout.index, layout.taken(number).d_keys, many)

    many = device.allocate(n, np.int64)
    return [
        Case(
            "unique",
            lambda i: device.unique([(0, TABLE_ROWS, layout.taken(i).d_keys)]),
            # The copy of keys, what the header counts beyond the L2 cache, the sum, the fills.
            lambda _: 16 * n + 44 * n + 16 * u + 8 * n + ENTRY_BYTES * places,
        ),
        Case("probe", probe, lambda _: 180 * u, rows=u),
        Case("probe of every key", probe_all, lambda _: 180 * n, whole=False, rows=n),
    ]


def _row_cases(layout: Layout) -> list[Case]:
    device, n, u = layout.device, layout.scale.keys, layout.unique_count
    dim, stride, bag = layout.dim, layout.stride, layout.scale.bag_keys
    bags = n // bag
    offsets = np.arange(bags + 1) * bag
    offsets[-1] = n
    whole_rows = device.allocate_rows(max(len(c.slots) for c in layout.calls), stride)

    def gather(number: int) -> None:
        call, out = layout.taken(number), layout.outs[number % len(layout.outs)]
        device.gather(layout.memory.rows, call.slots, call.batch, dim, [out])

    def gather_distinct(number: int) -> None:
        call, out = layout.taken(number), layout.outs[number % len(layout.outs)]
        rows = layout.memory.rows
        device.gather(rows, call.slots, call.distinct, dim, [out[: len(call.slots)]])

    def gather_rows(number: int) -> None:
        device.gather_rows(layout.memory.rows, layout.taken(number).slots, whole_rows, 0)

    def gather_pooled(number: int) -> None:
        call, out = layout.taken(number), layout.outs[number % len(layout.outs)][:bags]
        rows = layout.memory.rows
        device.gather_pooled(rows, call.slots, call.batch, offsets, False, None, out)

    def sum_by_key(number: int) -> None:
        call, turn = layout.taken(number), number % len(layout.calls)
        gradients = [Gradients(rows=layout.d_gradients[turn])]
        device.sum_by_key(call.batch, gradients, np.float32(1.0), layout.sums[turn])

    grouping = 12 * n + (12 * n + 8 * u)
    return [
        Case("gather", gather, lambda _: 4 * n + 8 * u + 4 * dim * (u + n), rows=n),
        Case("gather of unique rows", gather_distinct, lambda _: 12 * u + 8 * dim * u, rows=u),
        Case("gather_rows", gather_rows, lambda _: 8 * u + 8 * stride * u, rows=u),
        Case(
            "gather_pooled",
            gather_pooled,
            lambda _: 4 * n + 8 * u + 4 * dim * (u + bags),
            whole=False,
            rows=n,
        ),
        Case(
            "sum_by_key",
            sum_by_key,
            lambda _: grouping + 8 * n + 8 * u + 4 * dim * (n + u),
            rows=n,
        ),
    ]


def _host_row_cases(layout: Layout) -> list[Case]:
    device, u, stride = layout.device, layout.unique_count, layout.stride
    call = layout.calls[0]
    slots, keys = device.download(call.slots), device.download(call.batch.unique_keys)
    given = parameters(RowWiseAdagrad(0.01), layout.dim)

    def scatter_rows(number: int) -> None:
        rows = device.staging(u, stride)
        if number == 0:
            rows[:] = 0.5
        device.scatter_rows(rows, layout.memory.rows, slots)

    def initialize(number: int) -> None:
        device.initialize(layout.memory.rows, slots, keys, given, layout.dim, 1)

    return [
        Case("scatter_rows", scatter_rows, lambda _: 8 * u + 8 * stride * u, whole=False, rows=u),
        Case("initialize", initialize, lambda _: 16 * u + 4 * stride * u, whole=False, rows=u),
    ]


def _slots(layout: Layout) -> list[Case]:
    device, u, m = layout.device, layout.unique_count, layout.scale.moved_rows
    clocks = counter(layout.scale.clocks + 1)

    def touch(number: int) -> None:
        device.touch(layout.memory, layout.taken(number).slots, next(clocks), COUNT_NONE)

    def erase_and_insert(number: int) -> None:
        device.erase(layout.index, layout.moved_keys)
        assert device.insert(layout.index, layout.moved_keys, layout.moved_slots)

    def select_victims(number: int) -> None:
        device.select_victims(layout.memory, layout.scale.slots, 1 << 39, m)

    passes = ("score_range", "count_scores", "count_victims", "collect_victims")

    def bytes_of_passes(launches: dict[str, list[float]]) -> int:
        return 8 * layout.scale.slots * sum(len(launches[name]) for name in passes)

    return [
        # A slot's number, and its score's sector of 32 bytes, read and written.
        Case("touch", touch, lambda _: 72 * u, rows=u),
        Case("erase + insert", erase_and_insert, lambda _: 472 * m, whole=False, rows=m),
        Case(
            "select_victims",
            select_victims,
            bytes_of_passes,
            whole=False,
            rows=layout.scale.slots,
        ),
    ]


def _sessions(layout: Layout) -> list[Case]:
    """Return the cases of what a session does to scores; its ranks stay, so they come last."""
    device, u = layout.device, layout.unique_count
    slots_of_calls = [device.download(call.slots) for call in layout.calls]
    ranks = FORESEEN | np.arange(max(len(slots) for slots in slots_of_calls))

    def pin_and_unpin(number: int) -> None:
        slots = layout.taken(number).slots
        device.pin(layout.memory, slots)
        device.unpin(layout.memory, slots)

    def arrive(number: int) -> None:
        device.arrive(layout.memory, slots_of_calls[number % len(slots_of_calls)])

    def count_pending(number: int) -> None:
        device.count_pending(layout.memory, layout.taken(number).slots)

    def foresee(number: int) -> None:
        slots = layout.taken(number).slots
        device.foresee(layout.memory, slots, ranks[: len(slots)])

    return [
        Case("pin + unpin", pin_and_unpin, lambda _: 144 * u, whole=False, rows=u),
        Case("arrive", arrive, lambda _: 72 * u, whole=False, rows=u),
        Case("count_pending", count_pending, lambda _: 40 * u, whole=False, rows=u),
        Case("foresee", foresee, lambda _: 80 * u, whole=False, rows=u),
    ]


def apply_case(layout: Layout, optimizer: Any) -> Case:
    """Return the case of an optimizer, on a pool of its own layout with twice the unique rows."""
    device, dim, scale = layout.device, layout.dim, layout.scale
    state_dim = optimizer.state_dim(dim)
    most = max(len(call.slots) for call in layout.calls)
    slots = 1 << (2 * most - 1).bit_length()
    memory = new_slots(device, scale, row_stride(dim + state_dim), slots)
    rng = np.random.default_rng(scale.seed)
    places = [rng.permutation(slots)[: len(call.slots)] for call in layout.calls]
    given = parameters(optimizer, dim)
    for here in places:
        keys = np.arange(len(here))
        device.initialize(memory.rows, here, keys, given, dim, state_dim)
    d_slots = [device.upload(here) for here in places]
    for sums in layout.sums:
        device.runtime.fill(sums, 0)

    def apply(number: int) -> None:
        turn = number % len(layout.calls)
        keys, sums = layout.calls[turn].batch.unique_keys, layout.sums[turn]
        device.apply(optimizer.kind, memory, d_slots[turn], keys, sums, given)

    u = layout.unique_count
    return Case(
        f"apply_{optimizer.kind}",
        apply,
        lambda _: 16 * u + 4 * dim * u + 8 * (dim + state_dim) * u,
        rows=u,
    )

"""What the kernel tests share: every device, slots on it, awkward floats, bits to compare.

Every test of a verb runs its call on each of `devices()` and expects the same bits of all: the CPU
with one, two and three threads, which cut even the smallest call at every place that a thread may,
and a GPU that the host emulates (`emulation`), whose slabs are of a few slots.
"""

from functools import cache

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY, KEY_BITS
from embstore.device.cpu import CpuDevice
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import DeviceArray
from embstore.device.values import TableParameters
from embstore.layout import Layout
from tests.kernels.emulation.runtime import EmulatedRuntime

DIMS = (1, 7, 13, 64, 4096)
THREADS = (1, 2, 3)
SLAB_SLOTS = 16


@cache
def cpu_devices():
    made = [CpuDevice(threads) for threads in THREADS]
    for device in made:
        device.work.split_bytes = 0
    return made


@cache
def gpu_device():
    return GpuDevice(EmulatedRuntime(), threads=2)


def devices():
    return [*cpu_devices(), gpu_device()]


each_device = pytest.mark.parametrize(
    "device", devices(), ids=[*(f"cpu {threads}" for threads in THREADS), "gpu"]
)


def bits(values):
    """Bits of float32 as they are: -0.0 is not 0.0, and one NaN is not another."""
    return np.ascontiguousarray(values).view(np.uint32).tolist()


def awkward(rng, *shape, finite=True):
    """Return float32 of every kind: usual, denormal, -0.0, huge, and where asked inf and NaN."""
    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 15, shape)).astype(np.float32)
    kinds = rng.integers(0, 12 if finite else 15, shape)
    values[kinds == 0] = -0.0
    values[kinds == 1] = 0.0
    denormals = rng.integers(1, 1 << 23, shape).astype(np.uint32).view(np.float32)
    values = np.where(kinds == 2, denormals, np.where(kinds == 3, -denormals, values))
    if not finite:
        values[kinds == 12] = np.inf
        values[kinds == 13] = -np.inf
        payload = (0xFF800001 + rng.integers(0, 1 << 20, shape)).astype(np.uint32)
        values = np.where(kinds == 14, payload.view(np.float32), values)
    return values


def records(rng, slot_count, stride):
    """Return (slot_count, stride) usual values, as rows are."""
    return rng.standard_normal((slot_count, stride)).astype(np.float32)


def row_keys(table_id, keys):
    return np.asarray(keys, np.int64) | table_id << KEY_BITS


def wide(stride):
    """Return the layout of rows of so many elements, without state."""
    return Layout(stride, 0, "sgd")


def up(device, array):
    """Return a copy in the device's memory."""
    return device.memory.upload(array)


def down(device, array):
    """Return a copy on the host."""
    return device.memory.download(array)


def batch_of(device, *keys_of_tables):
    """Return the synchronized batch of some tables, numbered from 0; valid until the next."""
    batch = device.keys.unique([(i, 1 << 40, k) for i, k in enumerate(keys_of_tables)])
    device.keys.synchronize(batch)
    assert batch.found.outside == -1
    return batch


def overwrite(device, array, values):
    """Write the first elements of a device's array, which no verb does with any bits."""
    values = np.ascontiguousarray(values).reshape(-1)
    if isinstance(array, DeviceArray):
        device.work.runtime.upload(values, array.view(array.dtype)[: len(values)])
    else:
        array.reshape(-1)[: len(values)] = values


def host_rows(device, array, dim):
    """Return a device's rows on the host, of which those of dim 1 are a vector there."""
    return device.memory.download(array).reshape(-1, dim)


def slots_with(device, rows, *, keys=(), scores=(), dirty=(), slab_slots=SLAB_SLOTS):
    """Return slots that have these rows, row keys, scores and dirty flags, whatever their bits.

    Verbs write no NaN but the canonical one and no score but a clock's, so this goes past them.
    Slots that are not named are free and clean; there are as many as whole slabs have.
    """
    room = -(-max(len(rows), 1) // slab_slots) * slab_slots
    memory = device.memory.allocate_slots(wide(rows.shape[1]))
    device.memory.reserve_slots(memory, 0, room, slab_slots)
    device.memory.add_slots(memory, 0, room)
    values = [
        _padded(rows, room, np.float32, 0),
        _padded(keys, room, np.int64, EMPTY_KEY),
        _padded(scores, room, np.int64, 0),
        _padded(dirty, room, np.uint8, 0),
    ]
    if isinstance(device, CpuDevice):
        for array, all_values in zip(vars(memory).values(), values, strict=True):
            overwrite(device, array, all_values)
        return memory
    for number, slab in enumerate(memory.slabs):
        part = slice(number * slab_slots, (number + 1) * slab_slots)
        parts = [np.frombuffer(all_values[part].tobytes(), np.uint8) for all_values in values]
        overwrite(device, slab.rows, parts[0])
        overwrite(device, slab.metadata, np.concatenate(parts[1:]))
    return memory


def _padded(values, count, dtype, rest):
    values = np.asarray(values, dtype)
    missing = np.full((count - len(values), *values.shape[1:]), rest, dtype)
    return np.concatenate([values, missing])


def rows_in(device, memory, count):
    """Return the rows of the first slots."""
    return device.rows.read_rows(memory.rows, device.memory.upload(np.arange(count)))


def contents_of(device, memory, count):
    """Return what is in the first slots: rows as bits, keys, scores, dirty flags."""
    here = device.slots.read_range(memory, 0, count)
    rows = bits(rows_in(device, memory, count))
    return rows, here.keys.tolist(), here.scores.tolist(), here.dirty.tolist()


def parameters(table_count, **fields):
    """Return TableParameters that are zero where not given."""
    zeros = {
        "scalars": np.zeros((table_count, 8), np.float32),
        "initializer_kinds": np.zeros(table_count, np.int8),
        "initializer_values": np.zeros((table_count, 2), np.float32),
        "seeds": np.zeros(table_count, np.uint64),
        "initial_state": np.zeros(table_count, np.float32),
    }
    return TableParameters(**(zeros | fields))

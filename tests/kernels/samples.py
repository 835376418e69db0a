"""What the kernel tests share: devices that split everything, awkward floats, bits to compare.

Every test runs its call on each of `devices()`, which differ in their number of threads alone, and
expects the same bits of all. They cut even the smallest call, at every place that a thread may.
"""

from functools import cache

import numpy as np

from embstore.arrays import KEY_BITS
from embstore.device.base import Batch, TableParameters
from embstore.device.cpu import CpuDevice

DIMS = (1, 7, 13, 64, 4096)
THREADS = (1, 2, 3)


@cache
def devices():
    made = [CpuDevice(threads) for threads in THREADS]
    for device in made:
        device._split_bytes = 0
    return made


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


def batch_of(device, *keys_of_tables):
    """Return a copy of the batch of some tables' keys, numbered from 0."""
    batch, bad = device.unique([(i, 1 << 40, k) for i, k in enumerate(keys_of_tables)])
    assert bad == -1
    return Batch(
        *(getattr(batch, f).copy() for f in ("unique_keys", "inverse", "bounds", "id_bounds"))
    )


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


def from_hex(text):
    """Return a row that contract.md writes as words in hexadecimal."""
    return [int(word, 16) for word in text.split()]

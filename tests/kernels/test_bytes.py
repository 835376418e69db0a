"""Bytes that kernels move, counted by a build of the emulation, and those of the standard step."""

import shutil

import numpy as np
import pytest

from tests.bench.gpu import moved
from tests.bench.gpu.scale import Scale
from tests.kernels.emulation import build as builder
from tests.kernels.emulation.build import Bytes
from tests.kernels.emulation.samples import made, put

if shutil.which(builder.COMPILER) is None:
    pytest.skip(f"needs {builder.COMPILER}", allow_module_level=True)

PART = 256
STEP_BYTES = 2.1e9
"""Of a lookup and an update of 1.05 M keys, by sectors."""


def test_loads_and_stores_are_counted_by_their_sizes_and_by_sectors():
    runtime = made(counting=True)
    values, out = put(runtime, np.arange(100, dtype=np.float32)), runtime.allocate(256, np.int32)
    runtime.launch("copy_16", 1, values[4:8], values[8:])  # by 256 threads
    runtime.launch("number", 1, out, np.int64(100))
    runtime.launch("read_shared", 1, out.view(np.uint8))
    runtime.close()
    found = dict(runtime.moved)
    assert found["copy_16"] == Bytes(256 * 16, 256 * 16, 32, 32)
    assert found["number"] == Bytes(0, 400, 0, 416)  # 100 elements reach into a 13th sector
    assert found["read_shared"] == Bytes(0, 256, 0, 256)


def test_the_standard_step_moves_no_more_bytes_than_it_did(tmp_path):
    keys, rows = moved.keys_in_small(Scale(), PART)
    unique, counts = np.unique(keys, return_counts=True)
    assert 0.33 < len(unique) / len(keys) < 0.34
    assert 0.86 < (counts == 1).mean() < 0.88
    found = moved.measure(tmp_path / "store", keys, rows)
    launches = [launch for call in found.values() for launch in call]
    sectors = moved.sums(moved.total(launches))[1] / len(keys) * Scale().keys
    assert 0.5 * STEP_BYTES < sectors <= STEP_BYTES, "\n".join(
        moved.table(found, len(keys), Scale().keys)
    )

"""scatter_rows: copies, except that every NaN becomes the canonical one."""

import numpy as np
import pytest

from embstore.arithmetic import canonicalize_nans
from tests.kernels.samples import awkward, bits, devices, records

SEED = 4


@pytest.mark.parametrize("stride", [4, 8, 16, 68, 4100])
def test_scatter_writes_the_named_records_and_no_other(stride):
    rng = np.random.default_rng(SEED)
    source = awkward(rng, 45, stride, finite=False)
    source.flags.writeable = False
    before, slots = records(rng, 60, stride), rng.permutation(60)[:45]
    canonical = source.copy()
    canonicalize_nans(canonical)
    expected = before.copy()
    expected[slots] = canonical
    for device in devices():
        rows = before.copy()
        device.scatter_rows(source, rows, slots)
        assert bits(rows) == bits(expected)


def test_every_kind_of_nan_becomes_the_canonical_one():
    nans = [0x7F800001, 0x7FC00001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF]
    others = [0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF]
    rows = np.zeros((1, 12), np.float32)
    source = np.array([nans + others], np.uint32).view(np.float32)
    devices()[0].scatter_rows(source, rows, np.zeros(1, np.int64))
    assert bits(rows) == [[0x7FC00000] * 6 + others]

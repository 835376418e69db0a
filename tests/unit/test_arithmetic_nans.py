"""Rule 1: the canonical NaN, of arithmetic and reference."""

import numpy as np

from embstore.arithmetic import CANONICAL_NAN, canonicalize_nans
from tests import reference


def test_every_nan_gets_the_canonical_bits_and_nothing_else_changes():
    bits = np.array(
        [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFF800001, 0x7F800001, 0x7F800000, 0xFF800000],
        np.uint32,
    )
    bits = np.concatenate([bits, np.array([0x80000000, 0, 1, 0x80000001], np.uint32)])
    rows = bits.view(np.float32).copy()
    by_reference = reference.canonical(rows)
    canonicalize_nans(rows)
    for found in (rows, by_reference):
        assert found.view(np.uint32).tolist() == [0x7FC00000] * 5 + bits[5:].tolist()


def test_views_and_empty_rows_are_taken():
    records = np.full((2, 4), -np.nan, np.float32)
    before = records.view(np.uint32)[0, 3]
    canonicalize_nans(records[:, :2])
    assert records.view(np.uint32)[:, :2].tolist() == [[0x7FC00000] * 2] * 2
    assert records.view(np.uint32)[0, 3] == before
    canonicalize_nans(np.empty((0, 3), np.float32))


def test_the_constant_has_the_canonical_bits():
    assert CANONICAL_NAN.dtype == np.float32
    assert int(CANONICAL_NAN.view(np.uint32)) == 0x7FC00000

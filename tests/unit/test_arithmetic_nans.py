"""Rule 1: the canonical NaN, of arithmetic and reference."""

import numpy as np

from embstore.arithmetic import canonicalize_nans
from tests import rules


def test_every_nan_gets_the_canonical_bits_and_nothing_else_changes():
    bits = np.array(
        [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFF800001, 0x7F800001, 0x7F800000, 0xFF800000],
        np.uint32,
    )
    bits = np.concatenate([bits, np.array([0x80000000, 0, 1, 0x80000001], np.uint32)])
    rows = bits.view(np.float32).copy()
    by_reference = rules.canonical(rows)
    canonicalize_nans(rows)
    for found in (rows, by_reference):
        assert found.view(np.uint32).tolist() == [0x7FC00000] * 5 + bits[5:].tolist()

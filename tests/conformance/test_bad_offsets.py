"""Offsets of bags that do not rise from 0 to the number of keys."""

import subprocess
import sys

import numpy as np
import pytest

from embstore.arrays import as_offsets
from embstore.config import Constant, Sgd
from embstore.errors import InvalidArgumentError

WRAPPING = [0, 2**63 - 1, -(2**62), 2]
"""np.diff of these wraps around: [2**63 - 1, 2**62 + 1, 2**62 + 2], nothing negative."""
LOOKUP = f"""
import sys, embstore
from embstore import Constant, Sgd
store = embstore.open(sys.argv[1], cache_bytes=1 << 20)
table = store.create_table("a", dim=4, rows=9, optimizer=Sgd(0.1), initializer=Constant(0.0))
try:
    table.lookup_pooled([0, 1], {WRAPPING})
except embstore.InvalidArgumentError:
    sys.exit(7)
"""


def test_wrapping_offsets_are_refused():
    with pytest.raises(InvalidArgumentError, match="offsets"):
        as_offsets(WRAPPING, 2, "a")


def test_pooled_lookup_with_wrapping_offsets_is_refused_not_a_crash(tmp_path):
    done = subprocess.run([sys.executable, "-c", LOOKUP, str(tmp_path / "store")], check=False)
    assert done.returncode == 7


@pytest.mark.parametrize(
    "offsets", [[], [0], [1, 2], [0, 3], [0, 1], [0, 2, 1, 2], [0.0, 2.0], [[0, 2]], [-1, 2]]
)
def test_bad_offsets_change_nothing(open_twin, offsets):
    twin = open_twin()
    table = twin.create_table("a", dim=4, rows=9, optimizer=Sgd(0.1), initializer=Constant(0.0))
    bags = np.ones((max(len(offsets) - 1, 0), 4), np.float32)
    with pytest.raises(InvalidArgumentError, match="table 'a': expected offsets"):
        table.lookup_pooled([0, 1], offsets)
    with pytest.raises(InvalidArgumentError, match="table 'a': expected offsets"):
        table.update_pooled([0, 1], offsets, bags)

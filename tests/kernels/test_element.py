"""The type in which rows are kept is named in two places, `layout.py` and `types.cuh`.

Rows kept as float64 hold every fp32 exactly. So a store that keeps them that way reads the same
bits as ever, unless cache, kernels, files or log take an element for a value somewhere. The trace
has every optimizer, lookups, pooled and plain, updates, rows that are set, and an opening again.
"""

import shutil
import subprocess
import sys

import pytest

from tests.style.sources import ROOT


def trace(element: str, device: str, folder) -> tuple[int, str]:
    """Return the bytes of a row, and a hash of what a store read whose rows are of this type."""
    program = [sys.executable, "-m", "tests.kernels.element_trace", element, device, str(folder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row_bytes, digest = done.stdout.split()
    return int(row_bytes), digest


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "emulated", marks=pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
        ),
    ],
)
def test_rows_kept_in_a_wider_type_read_the_same(device, tmp_path):
    (tmp_path / "narrow").mkdir()
    (tmp_path / "wide").mkdir()
    narrow, wanted = trace("float32", device, tmp_path / "narrow")
    wide, found = trace("float64", device, tmp_path / "wide")
    assert (narrow, wide) == (48, 96)
    assert found == wanted

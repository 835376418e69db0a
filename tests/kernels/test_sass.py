"""Rows are stored 16 bytes at a time in the machine code of the GPUs that embstore is for.

A lane that owns four elements may store them one by one, and a compiler that sees them in registers
does; it costs four times the instructions and, where rows are what limits a kernel, much of its
speed. What a row-wise optimizer stores is 4 bytes by design (apply.cu: rule 3 gives a lane every
32nd element), which a warp joins to lines of 128.
"""

import re
import subprocess

import pytest

from embstore.kernels.sources import source
from tests.kernels.nvrtc import ARCHITECTURES, compiled, found, nvrtc

WIDE = "if (is_wide) {\n        body(4);"
ALIGNED = "return (reinterpret_cast<uint64>(address) & 15) == 0;"
KERNELS = {
    "gather": ["gather", "gather_rows", "copy_slots"],
    "gather_pooled": ["gather_pooled"],
    "scatter": ["scatter_rows"],
    "sum_by_key": ["sum_chunks"],
    "apply": ["apply_sgd", "apply_adagrad", "apply_adam", "apply_ftrl"],
}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_.]+)")
STORE = re.compile(r"STG?\.E(\.(?!U8)\w+)*$")  # of anything but shared and local memory, and flags


@pytest.fixture(autouse=True)
def _needs_wheels():
    if nvrtc() is None or found("bin/nvdisasm") is None:
        pytest.skip("needs NVRTC and nvidia-cuda-nvdisasm, of the extra 'dev'")


def stores(text, architecture, path):
    """Return the stores to global memory of each kernel, as the machine's instructions."""
    binary, log = compiled(text, "all.cu", architecture)
    assert binary, log
    path.write_bytes(binary)
    command = [found("bin/nvdisasm"), "-c", str(path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    of_kernels = {}
    for part in re.split(r"\.section\s+\.text\.", listing)[1:]:
        name = re.match(r"\w+", part)[0]
        of_kernels[name] = [op for op in INSTRUCTION.findall(part) if STORE.match(op)]
    return of_kernels


def wide(text):
    """Return a source whose rows are all of 16-byte pieces, and begin at 16 bytes."""
    assert text.count(WIDE) == text.count(ALIGNED) == 1
    return text.replace(WIDE, WIDE.replace("is_wide", "true")).replace(ALIGNED, "return true;")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("verb", KERNELS)
def test_rows_are_stored_16_bytes_at_a_time(verb, architecture, tmp_path):
    of_kernels = stores(wide(source(verb)), architecture, tmp_path / "cubin")
    for kernel in KERNELS[verb]:
        found_in_it = of_kernels[kernel]
        # Scores, and what the host is told, are of 8 bytes.
        found_in_it = [op for op in found_in_it if "E.64" not in op]
        assert found_in_it, kernel
        assert all("128" in op for op in found_in_it), (kernel, found_in_it)


def test_stores_of_4_bytes_are_seen(tmp_path):
    """Of four elements in registers, one by one."""
    text = source("sum_by_key")
    told = "__stwb(reinterpret_cast<float4*>(at), piece);"
    assert text.count(told) == 1
    plain = wide(text).replace(told, "at[0] = at[1] = piece.x, at[2] = at[3] = piece.y;")
    of_kernels = stores(plain, "sm_90", tmp_path / "cubin")
    assert any("128" not in op for op in of_kernels["sum_chunks"]), of_kernels

"""Machine code of the GPUs that embstore is for: stores of rows, and loads that wait together.

Rows are stored 16 bytes at a time. A lane that owns four elements may store them one by one, and a
compiler that sees them in registers does; it costs four times the instructions and, where
rows are what limits a kernel, much of its speed. What a row-wise optimizer stores is 4 bytes by
design (apply.cu: rule 3 gives a lane every 32nd element), which a warp joins to lines of 128.

Loads are in flight together where a kernel has issued several before it uses what the first one
brought. A compiler that is short of registers makes a rolling window of them.
"""

import re
import subprocess
import tempfile
from functools import cache

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
IN_FLIGHT = {
    "gather": {"gather": (8, 16), "gather_rows": (4, 16), "copy_slots": (4, 16)},
    "gather_pooled": {"gather_pooled": (4, 16)},
    "scatter": {"scatter_rows": (4, 16)},
    "sum_by_key": {"sum_chunks": (8, 16), "combine": (32, 4)},
    "probe": {"locate": (8, 16)},
    "apply": {
        "apply_sgd": (2, 16),
        "apply_adagrad": (3, 16),
        "apply_rowwise_adagrad": (17, 4),
        "apply_adam": (4, 16),
        "apply_ftrl": (4, 16),
    },
}
"""Loads of rows, or of buckets, that a lane has in flight, and the bytes of one. In `combine` 4
lanes share an element: it has 128 chunks in flight."""
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)([^;]*);")
LOADS = {4: re.compile(r"LDG?\.E(\.[A-Z]+)*$"), 16: re.compile(r"LDG?\.E(\.\w+)*\.128")}
STORE = re.compile(r"STG?\.E(\.(?!U8)\w+)*$")  # of anything but shared and local memory, and flags


@pytest.fixture(autouse=True)
def _needs_wheels():
    if nvrtc() is None or found("bin/nvdisasm") is None:
        pytest.skip("needs NVRTC and nvidia-cuda-nvdisasm, of the extra 'dev'")


@cache
def code(text, architecture):
    """Return the machine's instructions of each kernel, (operation, operands) each."""
    binary, log = compiled(text, "all.cu", architecture)
    assert binary, log
    with tempfile.NamedTemporaryFile() as file:
        file.write(binary)
        file.flush()
        command = [found("bin/nvdisasm"), "-c", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\.section\s+\.text\.", listing)[1:]
    return {re.match(r"\w+", part)[0]: INSTRUCTION.findall(part) for part in parts}


def stores(instructions):
    """Return the stores to global memory."""
    return [op for op, _ in instructions if STORE.match(op)]


def loads_in_flight(instructions, load_bytes):
    """Return the most loads of so many bytes that are issued before one of them is used."""
    most, pending = 0, []
    for op, operands in instructions:
        registers = [int(r) for r in re.findall(r"\bR(\d+)", operands)]
        used = registers if op.startswith(("ST", "BRA", "EXIT")) else registers[1:]
        used += [int(r) + 1 for r in re.findall(r"\bR(\d+)\.64", operands)]
        if any(register in brought for register in used for brought in pending):
            pending = []
        if LOADS[load_bytes].match(op):
            pending.append(range(registers[0], registers[0] + load_bytes // 4))
            most = max(most, len(pending))
    return most


def wide(text):
    """Return a source whose rows are all of 16-byte pieces, and begin at 16 bytes; as it is where
    it has no rows."""
    has_rows = '#line 1 "pieces.cuh"' in text
    assert text.count(WIDE) == text.count(ALIGNED) == has_rows
    return text.replace(WIDE, WIDE.replace("is_wide", "true")).replace(ALIGNED, "return true;")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("verb", KERNELS)
def test_rows_are_stored_16_bytes_at_a_time(verb, architecture):
    of_kernels = code(wide(source(verb)), architecture)
    for kernel in KERNELS[verb]:
        # Scores, and what the host is told, are of 8 bytes.
        found_in_it = [op for op in stores(of_kernels[kernel]) if "E.64" not in op]
        assert found_in_it, kernel
        assert all("128" in op for op in found_in_it), (kernel, found_in_it)


def test_stores_of_4_bytes_are_seen():
    """Of four elements in registers, one by one."""
    text = source("sum_by_key")
    told = "__stwb(reinterpret_cast<float4*>(at), piece);"
    assert text.count(told) == 1
    plain = wide(text).replace(told, "at[0] = at[1] = piece.x, at[2] = at[3] = piece.y;")
    of_kernels = {k: stores(c) for k, c in code(plain, "sm_90").items()}
    assert any("128" not in op for op in of_kernels["sum_chunks"]), of_kernels


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("verb", IN_FLIGHT)
def test_loads_of_rows_are_in_flight_together(verb, architecture):
    of_kernels = code(wide(source(verb)), architecture)
    for kernel, (count, load_bytes) in IN_FLIGHT[verb].items():
        assert loads_in_flight(of_kernels[kernel], load_bytes) >= count, kernel


def test_a_rolling_window_of_loads_is_seen():
    """As a compiler makes of them where it may take few registers."""
    bounds = r"__launch_bounds__\(BLOCK_THREADS[^)]*\) gather\("
    few = "__launch_bounds__(BLOCK_THREADS, 8) gather("
    text, count = re.subn(bounds, few, wide(source("gather")))
    assert count == 1
    instructions = code(text, "sm_90")["gather"]
    assert loads_in_flight(instructions, 16) < 4

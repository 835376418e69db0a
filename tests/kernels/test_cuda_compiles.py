"""Every kernel compiles for the GPUs that embstore is for, and none spills registers.

The options are those of the device, and what the assembler says of registers and memory stands in
the compiler's log.
"""

import re
import sys
from pathlib import Path

import pytest

from embstore.kernels.sources import VERBS, kernels_of, source, with_headers
from tests.kernels.nvrtc import ARCHITECTURES, compiled, nvrtc, version

FIGURES = re.compile(
    r"Function properties for (?P<kernel>\w+)\s+ptxas\W+(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (?P<registers>\d+) registers(?P<memory>[^\n]*)"
)
ROOT = Path(__file__).resolve().parents[2]
MEASUREMENTS = ROOT / "docs" / "measurements.md"
DOCUMENT = MEASUREMENTS.read_text(encoding="utf-8")
TOLD = {
    kernel: registers
    for kernel, *registers in re.findall(
        r"^\| `(\w+)` \| (\d+) \| (\d+) \|$", DOCUMENT, re.MULTILINE
    )
}
"""Registers of each kernel, by architecture."""
HEADERS = sorted(path.name for path in (ROOT / "embstore" / "kernels").glob("*.cuh"))
SHARED = re.compile(r"(\d+) bytes smem")


@pytest.fixture(autouse=True)
def _needs_nvrtc():
    if nvrtc() is None:
        pytest.skip("needs NVRTC: the wheel nvidia-cuda-nvrtc-cu12, of the extra 'dev'")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("verb", VERBS)
def test_kernels_compile_and_do_not_spill(verb, architecture, record_property):
    binary, log = compiled(source(verb), f"{verb}.cu", architecture)
    assert binary, log
    assert "warning" not in log, log
    figures = {match["kernel"]: match for match in FIGURES.finditer(log)}
    assert sorted(figures) == sorted(kernels_of(verb)), log
    for kernel, found in figures.items():
        shared = SHARED.search(found["memory"])
        line = (
            f"{kernel:<22} {architecture}  {found['registers']:>3} registers"
            f"  {shared[1] if shared else 0:>5} bytes shared  {found['stores']:>3} bytes spilled"
        )
        sys.stdout.write(f"{line}\n")
        record_property(f"{kernel} {architecture}", line)
        if f"NVRTC {version()}," in DOCUMENT:
            column = ARCHITECTURES.index(architecture)
            assert TOLD[kernel][column] == found["registers"], f"{MEASUREMENTS.name}: {line}"
    spilling = [k for k, f in figures.items() if (f["stores"], f["loads"]) != ("0", "0")]
    assert not spilling, log


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_includes_what_it_needs(header):
    binary, log = compiled(with_headers(header), header, ARCHITECTURES[0])
    assert binary, log


def test_the_table_of_the_documents_has_these_kernels():
    assert sorted(TOLD) == sorted(kernel for verb in VERBS for kernel in kernels_of(verb))


def test_a_spill_is_seen():
    """Many values that outlive one another, in a block that leaves 64 registers to a thread."""
    text = """
    extern "C" __global__ void __launch_bounds__(1024) crowded(float* values) {
        float held[128];
        #pragma unroll
        for (int i = 0; i < 128; ++i) held[i] = values[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 128; ++i) values[threadIdx.x * 128 + i] = held[i] * held[127 - i];
    }
    """
    binary, log = compiled(text, "crowded.cu", "sm_80")
    assert binary, log
    assert int(FIGURES.search(log)["stores"]) > 0, log


def test_a_message_of_the_compiler_names_file_and_line():
    binary, log = compiled('#line 7 "wrong.cu"\nint x = y;\n', "all.cu", "sm_80")
    assert not binary
    assert "wrong.cu(7): error" in log

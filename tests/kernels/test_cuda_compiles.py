"""Every kernel compiles for the GPUs that embstore is for, and none spills registers.

NVRTC needs neither GPU nor driver; it comes as a wheel. The options are those of the device, and
what its assembler says of registers and memory stands in its log.
"""

import ctypes
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from embstore.kernels.sources import OPTIONS, VERBS, kernels_of, source

ARCHITECTURES = ("sm_80", "sm_90")
WHEELS = ("nvidia.cuda_nvrtc", "nvidia.cu13")  # of CUDA 12 and 13
FIGURES = re.compile(
    r"Function properties for (?P<kernel>\w+)\s+ptxas\W+(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (?P<registers>\d+) registers(?P<memory>[^\n]*)"
)
SHARED = re.compile(r"(\d+) bytes smem")


@cache
def nvrtc():
    """Return NVRTC's library, or None where no wheel of it is installed."""
    for wheel in WHEELS:
        try:
            spec = find_spec(wheel)
        except ModuleNotFoundError:
            return None
        for folder in (spec and spec.submodule_search_locations) or []:
            found = sorted(Path(folder, "lib").glob("libnvrtc.so.*"))
            if found:
                return ctypes.CDLL(str(found[0]))
    return None


def compiled(text, name, architecture):
    """Return (whether it compiles, the log) of a source."""
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    given = [*OPTIONS, f"-arch={architecture}", "--ptxas-options=-v"]
    options = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), 0, None, None
    )
    assert created == 0
    try:
        result = library.nvrtcCompileProgram(program, len(given), options)
        assert library.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
        log = ctypes.create_string_buffer(size.value)
        assert library.nvrtcGetProgramLog(program, log) == 0
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return result == 0, log.value.decode()


@pytest.fixture(autouse=True)
def _needs_nvrtc():
    if nvrtc() is None:
        pytest.skip("needs NVRTC: the wheel nvidia-cuda-nvrtc-cu12, of the extra 'dev'")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("verb", VERBS)
def test_kernels_compile_and_do_not_spill(verb, architecture, record_property):
    compiles, log = compiled(source(verb), f"{verb}.cu", architecture)
    assert compiles, log
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
    spilling = [k for k, f in figures.items() if (f["stores"], f["loads"]) != ("0", "0")]
    assert not spilling, log


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
    compiles, log = compiled(text, "crowded.cu", "sm_80")
    assert compiles, log
    assert int(FIGURES.search(log)["stores"]) > 0, log


def test_a_message_of_the_compiler_names_file_and_line():
    compiles, log = compiled('#line 7 "wrong.cu"\nint x = y;\n', "all.cu", "sm_80")
    assert not compiles
    assert "wrong.cu(7): error" in log

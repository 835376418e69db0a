"""CUDA sources compiled as the device compiles them, by NVRTC.

It needs neither GPU nor driver, and comes as a wheel; so does the disassembler of what it makes.
"""

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from embstore.kernels.sources import OPTIONS

ARCHITECTURES = ("sm_80", "sm_90")
WHEELS = ("nvidia.cuda_nvrtc", "nvidia.cu13")  # of CUDA 12 and 13


def found(pattern):
    """Return a file of NVIDIA's wheels, or None where none has it."""
    for wheel in WHEELS:
        try:
            spec = find_spec(wheel)
        except ModuleNotFoundError:
            return None
        for folder in (spec and spec.submodule_search_locations) or []:
            files = sorted(Path(folder).glob(pattern))
            if files:
                return str(files[0])
    return None


@cache
def nvrtc():
    """Return NVRTC's library, or None where no wheel of it is installed."""
    library = found("lib/libnvrtc.so.*")
    return library and ctypes.CDLL(library)


def version():
    """Return NVRTC's version: "12.9"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return f"{major.value}.{minor.value}"


def compiled(text, name, architecture):
    """Return the binary of a source, empty where it does not compile, and the log."""
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    given = [*OPTIONS, f"-arch={architecture}", "--ptxas-options=-v"]
    options = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), 0, None, None
    )
    assert created == 0
    try:
        failed = library.nvrtcCompileProgram(program, len(given), options)
        parts = [b""] if failed else []
        for part in ("ProgramLog",) if failed else ("CUBIN", "ProgramLog"):
            assert getattr(library, f"nvrtcGet{part}Size")(program, ctypes.byref(size)) == 0
            text_of_part = ctypes.create_string_buffer(size.value)
            assert getattr(library, f"nvrtcGet{part}")(program, text_of_part) == 0
            parts.append(text_of_part.raw)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return parts[0], parts[1].rstrip(b"\0").decode()

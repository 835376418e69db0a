"""The CUDA sources of the kernels as text, and the options that every compiler of them is given.

A verb's source is `common.cuh` and `<verb>.cu`, one after the other, each behind a #line that names
it, so that a compiler's message says where to look. Whoever compiles a kernel, the device, a test
or the host compiler of the emulation, takes its text from here. No option fuses a multiplication
with an addition, flushes denormals, or divides approximately: the contract fixes every bit.
"""

import re
from functools import cache
from importlib.resources import files

OPTIONS = ("--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false")
"""Of NVRTC, in addition to the architecture."""

VERBS = tuple(
    sorted(
        entry.name.removesuffix(".cu")
        for entry in files("embstore.kernels").iterdir()
        if entry.name.endswith(".cu")
    )
)

_KERNEL = re.compile(
    r'^extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(',
    re.MULTILINE,
)


@cache
def source(verb: str) -> str:
    """Return all that a compiler is given of a verb."""
    return "".join(_with_name(name) for name in ("common.cuh", f"{verb}.cu"))


@cache
def kernels_of(verb: str) -> tuple[str, ...]:
    """Return the names of a verb's kernels, in the order of its file."""
    return tuple(_KERNEL.findall(source(verb)))


def _with_name(name: str) -> str:
    text = files("embstore.kernels").joinpath(name).read_text(encoding="utf-8")
    return f'#line 1 "{name}"\n{text}\n'

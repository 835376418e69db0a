"""The CUDA sources of the kernels as text, and the options of every compiler for them.

A verb's source is `<verb>.cu`, in which the text of each header that it includes, directly or
indirectly, is inserted once. The keys of CuPy's disk cache are source texts. If headers were
separate files, the cache would return an old kernel after a header has changed. A #line directive
names the file of the lines after it, so that a compiler's message names the right file and line.
The device, the tests and the emulation, which compiles kernels for the host, use this text. No
option fuses a multiplication with an addition, flushes denormals, or divides approximately, because
the contract fixes every bit.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

OPTIONS = ("--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false")
"""NVRTC's options, in addition to the architecture."""

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
_INCLUDE = re.compile(r'#include "(\w+\.cuh)"')


@cache
def source(verb: str) -> str:
    """Return the whole text of a verb for a compiler."""
    return with_headers(f"{verb}.cu")


def with_headers(name: str) -> str:
    """Return the text of a file, with the text of each header where it is first included."""
    return "".join(f"{line}\n" for line in _lines(name, set()))


def _lines(name: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    yield f'#line 1 "{name}"'
    text = files("embstore.kernels").joinpath(name).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        included = _INCLUDE.fullmatch(line)
        if included is None:
            yield line
        elif included[1] not in seen:
            yield from _lines(included[1], seen)
            yield f'#line {number + 1} "{name}"'
        else:
            yield ""


@cache
def kernels_of(verb: str) -> tuple[str, ...]:
    """Return the names of a verb's kernels, in the order of its file."""
    return tuple(_KERNEL.findall(source(verb)))

"""Where compiled kernels are stored: one object file per kernel (`codegen.py`).

**Portable code** is compiled for every processor of one level, and is stored in the package itself.
A process that can write to the package stores the code there for all users; `embstore compile`
creates it ahead of use, and an image or a wheel contains it. The level is x86-64-v3 (AVX2, from
2013 on). Kernels wait for memory rather than for arithmetic, and LLVM uses 256-bit vectors even on
most processors that have wider vectors. Therefore code for the local processor would gain little,
and none is compiled. The bits would be the same, because the contract fixes them. Only for a
processor below this level, and for a processor that NUMBA_CPU_NAME names, separate code is
compiled.

All code is also stored in the user's cache: `embstore/kernels` below XDG_CACHE_HOME, by default
`~/.cache`. Other copies of the package find the code there: Python that is started in the root of a
clone imports the clone, and not the package that was installed from it. Code for one processor
alone is stored only in the user's cache. Versions of the package share this cache, so the name of a
file in it contains the stamp of its sources, and the COPIES_MAX newest files of one kernel are
kept.

A **stamp** tells whether code is up to date. It is a hash of all sources from which or by which
kernels are compiled, in `embstore/arithmetic`, in `embstore/kernels` and in the kernel's folder,
and of the formulas and constants in `embstore`. Code is **sealed** by a hash, so that a file that a
full disk or a flipped bit has damaged is compiled again, and not run. The seal does not protect
from a person who can write to these folders; such a person can run any code anyway. The code is the
same for every version of Python and NumPy: it uses only parts of Python and NumPy that do not
change.
"""

import hashlib
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from llvmlite import binding  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from embstore.arithmetic.jit import Kernel

PACKAGE = Path(__file__).parents[1]
PORTABLE = PACKAGE / "kernels" / "portable"
SEAL_BYTES = 32
COPIES_MAX = 4
"""The most files of one kernel in the user's cache. They were compiled from different sources."""
CPU = "x86-64-v3"
FEATURES = frozenset(
    "avx avx2 bmi bmi2 cmov crc32 cx16 cx8 f16c fma fxsr lzcnt mmx movbe popcnt sahf sse sse2 sse3"
    " sse4.1 sse4.2 ssse3 xsave".split()
)
"""The features of a processor of level x86-64-v3, by LLVM's names."""

_NO_SOURCES = frozenset(("cached", "choice", "compiling", "jit", "loading", "xxh3"))
"""Files of `embstore/arithmetic` from which no kernel is compiled."""
VARIABLES = {
    "NUMBA_CPU_NAME": CPU,
    "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in sorted(FEATURES)),
}
"""The environment variables that make a process compile portable code."""


@cache
def processor_features() -> frozenset[str]:
    """Return the features of this processor, by LLVM's names; an empty set if LLVM does not know
    the processor."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    return frozenset(name for name, has in features.items() if has)


def is_portable() -> bool:
    """Return whether this process runs portable code."""
    return "NUMBA_CPU_NAME" not in os.environ and processor_features() >= FEATURES


def _target() -> str:
    """Return the name of the kind of processor for which the code of this process is compiled."""
    if is_portable():
        return CPU
    named = (os.environ.get(name, "") for name in VARIABLES)
    name, features = (*named,)
    features = features or ",".join(sorted(processor_features()))
    of = hashlib.blake2b(features.encode(), digest_size=4).hexdigest()
    return f"{name or binding.get_host_cpu_name()}-{of}"


@cache
def stamp(folder: Path) -> str:
    """Return the stamp of the kernels in a folder: a hash of all sources that can affect their
    code."""
    digest = hashlib.blake2b(_shared_sources(), digest_size=16)
    for path in sorted(folder.glob("*.py")):
        if has_kernels(path):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _shared_sources() -> bytes:
    arithmetic = [p for p in PACKAGE.glob("arithmetic/*.py") if p.stem not in _NO_SOURCES]
    sources = [*arithmetic, *PACKAGE.glob("kernels/*.py")]
    named = [PACKAGE / f"{name}.py" for name in ("arrays", "layout", "optimizers", "score")]
    return b"".join(path.read_bytes() for path in sorted([*sources, *named]))


def has_kernels(source: Path) -> bool:
    """Return whether a Python file may define kernels."""
    return b"embstore.arithmetic.jit" in source.read_bytes()


def sealed(kernel: "Kernel", code: bytes) -> bytes:
    """Return code, preceded by a hash of the code, of its sources and of its target."""
    of = "\0".join((_stamp_of(kernel), _target(), platform.machine(), sys.abiflags))
    digest = hashlib.blake2b(of.encode(), digest_size=SEAL_BYTES)
    digest.update(code)
    return digest.digest() + code


def kept(kernel: "Kernel") -> bytes | None:
    """Return the stored code of a kernel for this processor, compiled from its present sources.
    Return None if there is no such code, or it is damaged."""
    for folder in _folders():
        with suppress(OSError):
            found = _file(folder, kernel).read_bytes()
            code = found[SEAL_BYTES:]
            if found == sealed(kernel, code):
                return code
    return None


def keep(kernel: "Kernel", code: bytes) -> list[Path]:
    """Store the code of a kernel for later processes, in each writable folder. Return the files."""
    folders = [folder for folder in _folders() if _was_kept(folder, kernel, code)]
    if not folders:
        logging.getLogger("embstore").warning(
            "a compiled kernel could not be kept in %s: the next process compiles it again",
            " or ".join(map(str, _folders())),
        )
    return folders


def _was_kept(folder: Path, kernel: "Kernel", code: bytes) -> bool:
    new = _file(folder, kernel).with_suffix(f".{os.getpid()}")
    try:
        folder.mkdir(mode=0o700 if folder != PORTABLE else 0o777, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with new.open("xb") as file:  # does not follow links
            file.write(sealed(kernel, code))
        new.replace(_file(folder, kernel))
        if folder != PORTABLE:
            _remove_oldest(_file(folder, kernel))
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        return False
    return True


def _folders() -> Iterator[Path]:
    """Yield the folders that contain code, in the order in which they are searched."""
    if is_portable():
        yield PORTABLE
    with suppress(RuntimeError):  # the user has no home directory
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        yield Path(home, "embstore", "kernels")


def _file(folder: Path, kernel: "Kernel") -> Path:
    of = f"{kernel.name}-{_target()}"
    return folder / (f"{of}.nbc" if folder == PORTABLE else f"{of}-{_stamp_of(kernel)[:12]}.nbc")


def _stamp_of(kernel: "Kernel") -> str:
    return stamp(Path(kernel.function.__code__.co_filename).parent)


def _remove_oldest(kept: Path) -> None:
    """Remove the oldest files of a kernel from the user's cache, so that COPIES_MAX files
    remain."""
    of = kept.name.rpartition("-")[0]
    found = kept.parent.glob(f"{of}-{'[0-9a-f]' * 12}.nbc")
    for path in sorted(found, key=lambda one: one.stat().st_mtime_ns)[:-COPIES_MAX]:
        path.unlink(missing_ok=True)

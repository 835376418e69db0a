"""Where compiled kernels are kept: an object file for each (`codegen.py`).

**Portable code** is compiled for every processor of one level, and lies in the package itself: who
may write there keeps it for all users, `embstore compile` makes it ahead, and an image or a wheel
carries it. The level is x86-64-v3 (AVX2, from 2013 on). Kernels wait for memory rather than for
arithmetic, and LLVM takes 256-bit vectors on most processors that have wider ones, so nothing is
compiled again behind a store that serves. The bits are the same in any case, because the contract
fixes them. A processor below the level has code of its own; so has what NUMBA_CPU_NAME names.

All code is kept in the user's cache, too: `embstore/kernels` below XDG_CACHE_HOME, by default
`~/.cache`. Other copies of the package find it there: Python that is started in the root of a clone
imports the clone, and not the package that was installed from it. Code of one processor alone is in
the user's cache only. Versions of the package share that folder, so the name of a file there has
the stamp of its sources, and the COPIES_MAX newest files of one kernel are kept.

Code is compared with a **stamp**: a hash of all sources in `embstore/arithmetic` that kernels are
compiled from or by, in `embstore/kernels` and beside the kernel, and of the formulas and constants
in `embstore`. It is **sealed** by a hash, so that what a full disk or a flipped bit has damaged is
compiled anew, and not run. Whoever can write in these folders can run what they like anyway. The
code is the same for every version of Python and NumPy: it knows of both only what does not change.
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
"""Files of one kernel in the user's cache, of different sources."""
CPU = "x86-64-v3"
FEATURES = frozenset(
    "avx avx2 bmi bmi2 cmov crc32 cx16 cx8 f16c fma fxsr lzcnt mmx movbe popcnt sahf sse sse2 sse3"
    " sse4.1 sse4.2 ssse3 xsave".split()
)
"""Of a processor of the level, by LLVM's names."""

_NO_SOURCES = frozenset(("cached", "choice", "compiling", "jit", "loading", "xxh3"))
"""Files of `embstore/arithmetic` of which no kernel is compiled."""
VARIABLES = {
    "NUMBA_CPU_NAME": CPU,
    "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in sorted(FEATURES)),
}
"""With them in its environment, a process compiles portable code."""


@cache
def processor_features() -> frozenset[str]:
    """Return what this processor has, by LLVM's names; nothing where LLVM does not know it."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    return frozenset(name for name, has in features.items() if has)


def is_portable() -> bool:
    """Say whether this process runs portable code."""
    return "NUMBA_CPU_NAME" not in os.environ and processor_features() >= FEATURES


def _target() -> str:
    """Return which processors this process takes code of."""
    if is_portable():
        return CPU
    named = (os.environ.get(name, "") for name in VARIABLES)
    name, features = (*named,)
    features = features or ",".join(sorted(processor_features()))
    of = hashlib.blake2b(features.encode(), digest_size=4).hexdigest()
    return f"{name or binding.get_host_cpu_name()}-{of}"


@cache
def stamp(folder: Path) -> str:
    """Return a hash of the sources that a kernel of a folder may be compiled from."""
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
    """Say whether a file of Python may define kernels."""
    return b"embstore.arithmetic.jit" in source.read_bytes()


def sealed(kernel: "Kernel", code: bytes) -> bytes:
    """Return code behind a hash of it, and of what it was compiled from and for."""
    of = "\0".join((_stamp_of(kernel), _target(), platform.machine(), sys.abiflags))
    digest = hashlib.blake2b(of.encode(), digest_size=SEAL_BYTES)
    digest.update(code)
    return digest.digest() + code


def kept(kernel: "Kernel") -> bytes | None:
    """Return the code of a kernel for this processor, from its present sources; None: there is
    none, or it is damaged."""
    for folder in _folders():
        with suppress(OSError):
            found = _file(folder, kernel).read_bytes()
            code = found[SEAL_BYTES:]
            if found == sealed(kernel, code):
                return code
    return None


def keep(kernel: "Kernel", code: bytes) -> list[Path]:
    """Keep the code of a kernel for later processes, in each folder that takes it; return them."""
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
        with new.open("xb") as file:  # never through a link
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
    """Yield where code is kept, and looked for in this order."""
    if is_portable():
        yield PORTABLE
    with suppress(RuntimeError):  # who has no home
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        yield Path(home, "embstore", "kernels")


def _file(folder: Path, kernel: "Kernel") -> Path:
    of = f"{kernel.name}-{_target()}"
    return folder / (f"{of}.nbc" if folder == PORTABLE else f"{of}-{_stamp_of(kernel)[:12]}.nbc")


def _stamp_of(kernel: "Kernel") -> str:
    return stamp(Path(kernel.function.__code__.co_filename).parent)


def _remove_oldest(kept: Path) -> None:
    """Remove files of a kernel in the user's cache, of other sources, beyond COPIES_MAX."""
    of = kept.name.rpartition("-")[0]
    found = kept.parent.glob(f"{of}-{'[0-9a-f]' * 12}.nbc")
    for path in sorted(found, key=lambda one: one.stat().st_mtime_ns)[:-COPIES_MAX]:
        path.unlink(missing_ok=True)

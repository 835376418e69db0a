"""Where compiled kernels are kept.

**Portable code** is compiled ahead (`embstore compile`), for every processor of one level, and is
part of an installation or an image: with it a first start compiles nothing. It lies in the package
itself, and is taken where the processor has all of FEATURES. What is missing there is compiled for
this very processor at its first start, and kept where Numba keeps code: beside its source, or in
NUMBA_CACHE_DIR. NUMBA_CPU_NAME, where it is set, says what to compile for: then portable code is
not taken.

The level is x86-64-v3 (AVX2, from 2013 on). Kernels wait for memory rather than for arithmetic, and
LLVM takes 256-bit vectors on most processors that have wider ones, so nothing is compiled again
behind a store that serves. The bits are the same in any case, because the contract fixes them.

Both kinds are compared with a **stamp**. Numba's is of a kernel's own file, and it would go on
serving a kernel whose building blocks have changed in another; ours is a hash of all sources in
`embstore/arithmetic`, `embstore/kernels` and beside the kernel, and of the formulas and constants
in `embstore`. Code of another version of Numba or of Python is not looked at.

Portable code is machine code in a pickle, as Numba's own: who can write in the package can run
what they like anyway. Against accidents it is **sealed** by a hash, so that what a full disk or a
flipped bit has damaged is compiled anew, and neither unpickled nor run.
"""

import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding  # type: ignore[import-untyped]
from numba.core.caching import FunctionCache, NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

PACKAGE = Path(__file__).parents[1]
PORTABLE = PACKAGE / "kernels" / "portable"
SEAL_BYTES = 32
CPU = "x86-64-v3"
FEATURES = frozenset(
    "avx avx2 bmi bmi2 cmov crc32 cx16 cx8 f16c fma fxsr lzcnt mmx movbe popcnt sahf sse sse2 sse3"
    " sse4.1 sse4.2 ssse3 xsave".split()
)
"""Of a processor of the level, by LLVM's names."""

_config: Any = numba.config
_CODE = ",".join(f"+{feature}" for feature in sorted(FEATURES))
VARIABLES = {"NUMBA_CPU_NAME": CPU, "NUMBA_CPU_FEATURES": _CODE}
"""With them in its environment, a process compiles portable code, and nothing else."""


def _is_ahead() -> bool:
    """Say whether this process compiles portable code."""
    return bool((_config.CPU_NAME, _config.CPU_FEATURES) == (CPU, _CODE))


@cache
def processor_features() -> frozenset[str]:
    """Return what this processor has, by LLVM's names; nothing where LLVM does not know it."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    return frozenset(name for name, has in features.items() if has)


def is_of_level() -> bool:
    """Say whether portable code is what this process runs."""
    return processor_features() >= FEATURES and (_config.CPU_NAME is None or _is_ahead())


@cache
def stamp(folder: Path) -> str:
    """Return a hash of the sources that a kernel of a folder may be compiled from."""
    digest = hashlib.blake2b(digest_size=16)
    sources = [*PACKAGE.glob("arithmetic/*.py"), *PACKAGE.glob("kernels/*.py")]
    named = [PACKAGE / f"{name}.py" for name in ("arrays", "layout", "optimizers", "score")]
    for path in sorted([*sources, *named]):
        digest.update(path.read_bytes())
    for path in sorted(folder.glob("*.py")):
        if has_kernels(path):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def has_kernels(source: Path) -> bool:
    """Say whether a file of Python may define kernels."""
    return b"embstore.arithmetic.jit" in source.read_bytes()


def sealed(version: tuple[str, str], code: bytes) -> bytes:
    """Return code behind a hash of it, of Numba's version and of the stamp."""
    of = hashlib.blake2b("\0".join(version).encode(), digest_size=SEAL_BYTES)
    of.update(code)
    return of.digest() + code


class Kept:
    """The compiled code of a kernel: its dispatcher asks here before it compiles. Thread rule:
    Numba's, which compiles under one lock."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name, python = f"{function.__module__}.{function.__qualname__}", sys.version_info
        self._version = numba.__version__, stamp(Path(function.__code__.co_filename).parent)
        self._portable = PORTABLE / f"{name}-{python.major}.{python.minor}.nbc"
        self._own: Any = NullCache()
        if not _is_ahead():
            with suppress(RuntimeError):  # No folder can be written: compile in every process.
                self._own = FunctionCache(function)  # type: ignore[no-untyped-call]
                self._own._cache_file._source_stamp = self._version[1]

    def has_portable(self) -> bool:
        """Say whether there is portable code of these sources, undamaged."""
        return self._portable_code() is not None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature, portable or for this processor, or None."""
        target_context.refresh()
        code = self._portable_code() if is_of_level() else None
        if code is None:
            return self._own.load_overload(sig, target_context)
        rebuild: Any = CompileResult._rebuild
        return rebuild(target_context, *pickle.loads(code))

    def save_overload(self, sig: Any, compiled: Any) -> None:
        """Keep what was compiled for a signature."""
        if not _is_ahead():
            self._own.save_overload(sig, compiled)
            return
        new = self._portable.with_suffix(f".{os.getpid()}")
        try:
            dump: Any = dumps
            new.write_bytes(sealed(self._version, dump(compiled._reduce())))
            new.replace(self._portable)
        finally:
            new.unlink(missing_ok=True)

    def _portable_code(self) -> bytes | None:
        try:
            found = self._portable.read_bytes()
        except FileNotFoundError:
            return None
        code = found[SEAL_BYTES:]
        return code if found == sealed(self._version, code) else None

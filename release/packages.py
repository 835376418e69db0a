"""The Python packages: an sdist, a wheel for any machine, and a wheel with compiled kernels.

Compiled kernels are object files for x86-64 with AVX2. They call only Python's stable ABI and the C
library, so one wheel works with every version of Python from 3.11 on, and with every Linux that has
glibc. pip chooses the wheel with compiled kernels if its tag fits, and otherwise the other wheel,
with which the first start compiles the kernels. On a processor without AVX2, the first start
compiles the kernels with both wheels.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from release.source import Source

PLATFORM = "manylinux_2_17_x86_64"
KERNELS = Path("embstore", "kernels", "portable")
_PARTS = (".", "client", "proto", "server")


def build(source: Source, target: Path, kernels: Path | None) -> None:
    """Build sdist and wheels into a folder.

    kernels : folder of compiled kernels. Its kernels that were compiled from the same sources are
        used, and only the others are compiled. None: all kernels are compiled
    """
    _build(source, target, "--sdist", "--wheel")
    count = compile_kernels(source, kernels)
    print(f"release: {count} kernels in the wheel of {PLATFORM}", flush=True)
    folder = source.path.parent / "with-kernels"
    _build(source, folder, "--wheel")
    (wheel,) = folder.glob("*.whl")
    words = ["-m", "wheel", "tags", "--remove", "--platform-tag", PLATFORM, str(wheel)]
    run(words, source, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    shutil.copy(wheel, target)


def compile_kernels(source: Source, kernels: Path | None) -> int:
    """Compile every kernel in the source; return the number of kernels."""
    folder = source.path / KERNELS
    if kernels is not None:
        shutil.copytree(kernels, folder)
    # This cache is empty, because a kernel that is in a cache would not be written into the source.
    cache = source.path.parent / "cache"
    run(["-m", "embstore_server", "compile"], source, XDG_CACHE_HOME=str(cache))
    program = "from embstore_tools.commands.compile import kernels; print(*kernels())"
    names = run(["-c", program], source, stdout=subprocess.PIPE).split()
    for path in folder.iterdir():
        if path.name.rpartition("-x86-64-v3")[0] not in names:
            path.unlink()  # the file of a kernel that no longer exists
    found = len(list(folder.iterdir()))
    assert found == len(names), (
        f"{found} of {len(names)} kernels: this processor is below x86-64-v3"
    )
    return found


def run(words: list[str], source: Source, stdout: int | None = None, **variables: str) -> str:
    """Run this Python in the source, with only the packages of the source; return its output."""
    path = os.pathsep.join(str(source.path / part) for part in _PARTS)
    variables |= {"PYTHONPATH": path, "SOURCE_DATE_EPOCH": str(source.time_s)}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=source.path, env=os.environ | variables, check=True,
        stdout=stdout, text=True,
    )  # fmt: skip
    return done.stdout or ""


def _build(source: Source, target: Path, *kinds: str) -> None:
    words = ["-m", "build", "--no-isolation", *kinds, "--outdir", str(target), "."]
    run(words, source, stdout=subprocess.DEVNULL)

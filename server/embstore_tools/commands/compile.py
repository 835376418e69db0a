"""`embstore compile`: every kernel ahead, for all processors of a level.

What it makes is portable code (`embstore.arithmetic.cached`). It is kept in the package, so that
whoever runs this may write there: after an installation, or while an image is built. It takes about
50 s of one core, on as many cores as there are, and no time when all is there.
"""

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from embstore_server.cli import output
from embstore_server.cli.extras import needing

if TYPE_CHECKING:
    from embstore.arithmetic.jit import Kernel

_PACKAGES = "embstore", "embstore_server"
_PROCESSES_MAX = 8  # One kernel takes a fifth of the time.


def kernels() -> dict[str, "Kernel"]:
    """Return every kernel of embstore by its name, those with most code first."""
    from embstore.arithmetic import cached, jit

    for package in filter(find_spec, _PACKAGES):
        folder = Path(import_module(package).__path__[0])
        for path in sorted(filter(cached.has_kernels, folder.rglob("*.py"))):
            import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))
    by_size = sorted(jit.kernels, key=lambda kernel: -len(kernel.function.__code__.co_code))
    return {f"{kernel.__module__}.{kernel.function.__qualname__}": kernel for kernel in by_size}


def compile_one(name: str) -> None:
    """Compile one kernel, and keep it. In a process with the variables of `cached`."""
    kernels()[name].compile()


@needing("fast")
def compile() -> None:
    """Compile the kernels ahead, so that no start of a server does.

    The code is for every x86-64 processor with AVX2, and is kept in the installed package.
    """
    from embstore.arithmetic import cached

    if not cached.is_of_level():
        output.show_text(f"Nothing is compiled: this processor is not of level {cached.CPU}.")
        return
    missing = [n for n, k in kernels().items() if not cached.Kept(k.function).has_portable()]
    cached.PORTABLE.mkdir(exist_ok=True)
    os.environ |= cached.VARIABLES
    processes = min(os.cpu_count() or 1, _PROCESSES_MAX)
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    with pool, output.progress("kernels", len(missing)) as advance:
        for one in as_completed([pool.submit(compile_one, name) for name in missing]):
            one.result()
            advance(1)
    output.show_text(f"Compiled {len(missing)} kernels; every kernel is compiled now.")

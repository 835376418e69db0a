"""`embstore compile`: compiles every kernel in advance, so that no first start of a server compiles
any (`arithmetic.cached`).

This takes about a minute of processor time, spread over all processors. If all kernels are already
compiled, it takes no time.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from embstore_server.cli import output
from embstore_server.cli.extras import needing

if TYPE_CHECKING:
    from embstore.arithmetic.jit import Kernel

_PACKAGES = "embstore", "embstore_server"


def kernels() -> dict[str, "Kernel"]:
    """Return every kernel of embstore by its name."""
    from embstore.arithmetic import jit

    for package in filter(find_spec, _PACKAGES):
        folder = Path(import_module(package).__path__[0])
        for path in sorted(filter(_defines_kernels, folder.rglob("*.py"))):
            import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))
    return {kernel.name: kernel for kernel in jit.kernels}


def _defines_kernels(source: Path) -> bool:
    """Return whether a Python file defines a kernel. Other files can need more than the extra
    `fast` when they are imported."""
    return b"\n@kernel\n" in source.read_bytes()


@needing("fast")
def compile() -> None:
    """Compile the kernels in advance, so that no start of a server does.

    The code runs on every x86-64 processor with AVX2. It is stored in the installed package, if the
    package can be written, and in the user's cache (~/.cache/embstore). Code for other processors
    is stored only in the user's cache.
    """
    kernels()
    from embstore.arithmetic import jit

    counts = [0, 0]
    with output.progress("kernels", len(jit.kernels)) as advance:

        def progress(done: int, of: int) -> None:
            counts[1] += done - counts[0]
            advance(done - counts[0])
            counts[0] = done

        jit.compile_kernels(progress if sys.stderr.isatty() else None)
    output.show_text("Every kernel is compiled now.")

"""A program: train tables whose rows are kept in a type, and print a hash of all that was read.

    python -m tests.kernels.element_trace TYPE DEVICE FOLDER

TYPE is NumPy's name of it, DEVICE cpu or emulated. It prints the bytes of a row of ten elements,
and the hash.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

CUDA_NAMES = {"float32": "float", "float64": "double"}
ROWS = 300


def main(element: str, device: str, folder: Path) -> None:
    """Run the trace, then read all rows again from a store that was opened again."""
    layout = _layout_of(element)
    if element != "float32":
        _compile_here()
    read = hashlib.sha256()
    for part in (_train, _read_all):
        store = _open(folder / "store", device, element)
        part(store, read)
        store.close()
    sys.stdout.write(f"{layout.Layout(5, 5, 'adagrad').row_bytes} {read.hexdigest()}\n")


def _layout_of(element: str) -> Any:
    """Import `embstore.layout` with another type on the line that names it."""
    spec = importlib.util.find_spec("embstore.layout")
    assert spec is not None
    assert "embstore.layout" not in sys.modules
    assert spec.origin is not None
    layout = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    named = "\nELEMENT = np.dtype(np.{})\n"
    text = Path(spec.origin).read_text()
    assert named.format("float32") in text
    exec(text.replace(named.format("float32"), named.format(element)), layout.__dict__)
    return layout


def _compile_here() -> None:
    """Have kernels compiled by this process, which alone has the other type, when they are called;
    and none that is kept taken."""
    from embstore.arithmetic import compiling, jit

    def is_loaded(kernel: Any) -> bool:
        if not kernel._is_loaded:
            kernel.take(compiling.object_code(kernel))
        return True

    jit.Kernel.is_loaded = is_loaded  # type: ignore[method-assign]
    jit.compile_kernels = lambda progress=None: None


def _source_of(element: str) -> Any:
    """Return `sources.source` with another type on the lines of types.cuh that name it."""
    from embstore.kernels import sources

    named = "\ntypedef {} element;\n#define ELEMENT_BYTES {}ull\n"
    size = np.dtype(element).itemsize

    def source(verb: str) -> str:
        text = sources.source(verb)
        assert named.format("float", 4) in text
        return text.replace(named.format("float", 4), named.format(CUDA_NAMES[element], size))

    return source


def _open(path: Path, device: str, element: str) -> Any:
    import embstore

    if device == "cpu":
        return embstore.open(path, cache_bytes=1 << 19, threads=2)
    from embstore.device.gpu import GpuDevice
    from tests.kernels.emulation import runtime

    runtime.source = _source_of(element)
    device_of = GpuDevice(runtime.EmulatedRuntime(), None)
    return embstore.open(path, device=device_of, cache_bytes=600_000, host_cache_bytes=1 << 18)


def _train(store: Any, read: Any) -> None:
    from embstore.config import Normal, Uniform
    from embstore.optimizers import OPTIMIZERS

    rng = np.random.default_rng(11)
    for number, (kind, optimizer) in enumerate(OPTIMIZERS.items()):
        for dim in (5, 8, 33):
            config = {
                "dim": dim,
                "rows": ROWS,
                "optimizer": optimizer(0.1),
                "initializer": (Uniform(-0.1, 0.1), Normal(0.0, 0.1))[number % 2],
            }
            table = store.create_table(f"{kind}-{dim}", **config)
            for _ in range(4):
                keys = rng.integers(0, ROWS, 40)
                read.update(table.lookup(keys))
                read.update(table.lookup_pooled(keys, [0, 7, 7, 40], mode="mean"))
                table.update(keys, rng.standard_normal((40, dim), np.float32))
            table.assign([3, 7], rng.standard_normal((2, dim), np.float32))
            weights, state = table.read_rows([1, 2])
            table.put_rows([4, 5], weights, state, add_t=1)
    store.checkpoint("trained")


def _read_all(store: Any, read: Any) -> None:
    for name in sorted(store.tables()):
        table = store.table(name)
        for rows in table.read_rows(np.arange(ROWS)):
            read.update(rows)
        table.update([1, 2], np.ones((2, table.dim), np.float32))
        read.update(table.lookup(np.arange(ROWS)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

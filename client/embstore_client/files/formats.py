"""Which format a file has, by the end of its name; what writes it, and what reads it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.version import pip_install
from embstore_client.files.about import About

WRITTEN = {
    ".safetensors": "safetensors_file",
    ".parquet": "parquet_file",
    ".npy": "npy_file",
}
READ = WRITTEN | dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), "torch_file")
"""The module of each format, by the end of the name."""

Batch = tuple[Keys, Rows, Rows | None]
"""Keys (n,), weights (n, dim), state (n, state_dim) or None."""


class Writer(Protocol):
    """A file that is being written, by ascending key."""

    def write(self, keys: Keys, weights: Rows, state: Rows | None) -> None:
        """Write the next rows."""

    def finish(self) -> None:
        """Write what comes behind the last row."""

    def close(self) -> None:
        """Let the file go, finished or not."""


class Reader(Protocol):
    """A file that is read. What its library raises is turned into an InvalidArgumentError."""

    about: About | None
    """What it says of its table; None: nothing."""
    rows: int
    dim: int
    state_dim: int | None
    """None: it has no state."""

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield its rows in order."""

    def close(self) -> None:
        """Let the file go."""


def module_of(place: str, endings: dict[str, str]) -> Any:
    """Return the module of a format. Raises InvalidArgumentError."""
    for ending, name in endings.items():
        if place.endswith(ending):
            return import_module(f"embstore_client.files.{name}")
    expected = ", ".join(endings)
    raise InvalidArgumentError(f"expected the name of a file to end with {expected}, found {place}")


@contextmanager
def opened(path: Path, tensor: str | None, place: str) -> Iterator[Reader]:
    """Yield what reads a file; `place` names it in errors."""
    with understood(place):
        reader: Reader = module_of(path.name, READ).Reader(path, tensor)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def understood(place: str) -> Iterator[None]:
    """Say of which file it is what a library cannot read."""
    try:
        yield
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"{place}: {exc}") from exc
    except EmbstoreError:
        raise
    except ImportError as exc:
        raise InvalidArgumentError(
            f"{place}: {exc}; files of this format need more packages: "
            f"{pip_install('data')}; PyTorch's checkpoints need the extra torch"
        ) from exc
    except MemoryError:
        raise
    except Exception as exc:  # each library has its own
        raise InvalidArgumentError(f"{place}: expected a whole file of its format: {exc}") from exc


def chosen(tensor: str | None, shapes: dict[str, tuple[int, ...]]) -> str:
    """Return the name of the tensor that has the rows: the one asked for, or the only one that can
    be meant."""
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    if tensor is not None and tensor in matrices:
        return tensor
    if tensor is None and len(matrices) == 1:
        return matrices[0]
    some = ", ".join(map(repr, matrices[:20])) or "none"
    what = "one tensor of two dimensions" if tensor is None else f"a tensor {tensor!r} of rows"
    raise InvalidArgumentError(f"expected {what}, found {some}: name one of them")


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return an array as it is written."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pieces(rows: int, batch_rows: int) -> Iterator[slice]:
    """Yield the ranges of rows that batches are."""
    for low in range(0, rows, batch_rows):
        yield slice(low, min(low + batch_rows, rows))


def numbered(piece: slice) -> Keys:
    """Return the keys of rows that are numbered."""
    return np.arange(piece.start, piece.stop, dtype=np.int64)

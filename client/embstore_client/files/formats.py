"""The formats of files, by the ending of a file's name, and the protocols of their writers and
readers."""

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
from embstore_client.files.file_origin import FileOrigin
from embstore_client.files.packed import ENDINGS as PACKED
from embstore_client.files.values import Hashing

WRITTEN = {
    ".safetensors": "safetensors_file",
    ".parquet": "parquet_file",
    ".npy": "npy_file",
}
TEXT = dict.fromkeys((".csv", ".tsv", ".txt", ".vec"), "text_file")
READ = (
    WRITTEN
    | {".npz": "npy_file"}
    | dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), "torch_file")
    | TEXT
    | {text + packed: module for text, module in TEXT.items() for packed in PACKED}
)
"""The module that reads files of a format, by the ending of the file's name."""

Batch = tuple[Keys, Rows, Rows | None]
"""Keys (n,), weights (n, dim), state (n, state_dim) or None."""


class Writer(Protocol):
    """A file that is being written, in ascending order of keys."""

    def write(self, keys: Keys, weights: Rows, state: Rows | None) -> None:
        """Write the next rows."""

    def finish(self) -> None:
        """Write the part of the file after the last row."""

    def close(self) -> None:
        """Close the file, finished or not."""


class Reader(Protocol):
    """A file that is read. Errors of the format's library are turned into an
    InvalidArgumentError."""

    about: FileOrigin | None
    """The file's description of its table, or None."""
    rows: int
    dim: int
    state_dim: int | None
    """Elements of state per row. None: the file has no state."""
    are_sparse: bool
    """Whether the keys belong to a table of sparse keys. The import sets this."""

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield the rows in order."""

    def close(self) -> None:
        """Close the file."""


def module_of(place: str, endings: dict[str, str]) -> Any:
    """Return the module of a format. Raises InvalidArgumentError."""
    for ending, name in endings.items():
        if place.endswith(ending):
            return import_module(f"embstore_client.files.{name}")
    expected = ", ".join(end for end in endings if not end.endswith(PACKED))
    raise InvalidArgumentError(f"expected the name of a file to end with {expected}, found {place}")


@contextmanager
def opened(
    path: Path, place: str, tensor: str | None, key: str | None, hashed: Hashing | None = None
) -> Iterator[Reader]:
    """Yield the reader of a file. Errors name the file by `place`; `hashed` makes keys from the ids
    in the file."""
    with understood(place):
        reader: Reader = module_of(path.name, READ).Reader(path, tensor, key, hashed)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def understood(place: str) -> Iterator[None]:
    """Add the name of a file to the error of a library that cannot read the file."""
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
    except Exception as exc:  # each library has errors of its own
        raise InvalidArgumentError(f"{place}: expected a whole file of its format: {exc}") from exc


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return an array's bytes in the order in which they are written."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

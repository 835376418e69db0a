"""The format .npy, an array (rows, dim) whose row k belongs to key k. Also reads .npz.

Programs read a .npy file with `numpy.load`, without embstore. Therefore it contains every row of
the table: rows that were never written have the initializer's values for their keys (contract.md,
rule 10). The format cannot contain keys, state, or a description of the table.
"""

import shutil
from pathlib import Path

import numpy as np

from embstore.arithmetic import initial_rows
from embstore.arrays import Keys, Rows
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore_client.files.file_origin import FileOrigin
from embstore_client.files.formats import bytes_of
from embstore_client.files.tensors import TensorReader
from embstore_client.files.values import Hashing

_FILLED_ELEMENTS = 1 << 17
"""The number of elements of initial rows that are computed at a time; while it is computed, an
element takes up to about 100 bytes."""


class Writer:
    """Writes one file with all rows of a table."""

    def __init__(self, path: Path, about: FileOrigin, rows: int, *, with_state: bool) -> None:
        if with_state or about.since is not None:
            raise InvalidArgumentError(
                "expected a .npy file of all rows' weights, found a request for optimizer state "
                "or for the rows since a checkpoint: write .safetensors or .parquet"
            )
        self._config = config = about.config
        if config.is_sparse:
            raise InvalidArgumentError(
                "expected a table of dense keys, whose rows are those of a .npy file, found table "
                f"{config.name!r} of sparse keys: write .safetensors or .parquet, which have keys "
                "as well as rows"
            )
        size, free = VALUE_BYTES * config.rows * config.dim, shutil.disk_usage(path.parent).free
        if size > free:
            raise CapacityError(
                f"a .npy file has all {config.rows} rows of table {config.name!r}, {size} bytes, "
                f"and {free} are free: free disk space, or write .safetensors or .parquet, which "
                "have only rows that were written"
            )
        self._next = 0  # the first key that is not yet written
        self._file = path.open("r+b")
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (config.rows, config.dim),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, keys: Keys, weights: Rows, state: Rows | None) -> None:
        """Write the next rows. Keys between them that have no row get initial rows."""
        if not len(keys):
            return
        if keys[0] == self._next and keys[-1] - keys[0] == len(keys) - 1:
            self._append(weights)
        else:
            self._fill(int(keys[-1]) + 1, keys, weights)

    def finish(self) -> None:
        """Write initial rows for all keys above the last written key."""
        nothing = np.empty((0, self._config.dim), np.float32)
        self._fill(self._config.rows, np.empty(0, np.int64), nothing)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fill(self, end: int, keys: Keys, weights: Rows) -> None:
        """Write the rows of all keys below `end`: the given rows, and initial rows for other
        keys."""
        config = self._config
        step = max(_FILLED_ELEMENTS // config.dim, 1)
        while self._next < end:
            own = np.arange(self._next, min(self._next + step, end))
            low, high = np.searchsorted(keys, [own[0], own[-1] + 1])
            rows = np.empty((len(own), config.dim), np.float32)
            is_given = np.zeros(len(own), np.bool_)
            is_given[keys[low:high] - self._next] = True
            rows[is_given] = weights[low:high]
            rows[~is_given] = initial_rows(
                config.initializer, config.seed, own[~is_given], config.dim
            )
            self._append(rows)

    def _append(self, rows: Rows) -> None:
        self._file.write(bytes_of(rows))
        self._next += len(rows)


class Reader(TensorReader):
    """Reads one file. A .npy file is mapped; an .npz, whose arrays have names, is read as a
    whole."""

    def __init__(
        self, path: Path, tensor: str | None, key: str | None, hashed: Hashing | None
    ) -> None:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if tensor is not None or key is not None:
                raise InvalidArgumentError(
                    "expected no name of a tensor for a .npy file, which has a single array, "
                    f"found {tensor or key!r}"
                )
            if loaded.ndim != 2:
                raise InvalidArgumentError(
                    f"expected an array (rows, dim), found {loaded.dtype} {loaded.shape}"
                )
            arrays = {"": loaded}
        else:
            with loaded:
                arrays = dict(loaded)
        super().__init__(arrays, tensor, key, hashed)

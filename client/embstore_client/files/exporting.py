"""Writes a table's rows to a file. All rows have the values that they had after one command."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embstore.handles.table import Table
from embstore_client.files.base import sample
from embstore_client.files.batching import rows_of_batch
from embstore_client.files.file_origin import FileOrigin, packed
from embstore_client.files.formats import WRITTEN, module_of, understood
from embstore_client.files.places import writing

Progress = Callable[[int, int], None]
"""A function that is called with the number of rows done and the total. If it raises an error, the
work ends."""


@dataclass(frozen=True)
class Exported:
    """The outcome of an export."""

    place: str
    """The path or URL."""
    rows: int
    """The number of rows of the table that were ever written. A .npy file contains all rows of the
    table, so it can have more."""
    bytes: int
    about: FileOrigin


def export_table(
    table: Table,
    to: str | os.PathLike[str],
    *,
    label: str | None = None,
    since: str | None = None,
    with_state: bool = False,
    batch_rows: int | None = None,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> Exported:
    """Write a table to a file: all rows ever written, as they are after one command (`Table.scan`).

    Parameters
    ----------
    to : a path, or a URL if fsspec is installed, that ends with .safetensors, .parquet or .npy. An
        existing file is replaced when the new file is complete.
    label : a kept checkpoint to export. None: the store commits, and that commit is exported
    since : write only rows that were written after this kept checkpoint, and the keys of rows
        deleted after it
    with_state : write the optimizer's state too; an import with state makes an identical table
    batch_rows : the number of rows in memory at a time. None: as many rows as fit in 16 MiB
    progress : called with the number of rows done, and the total
    timeout_s : timeout of the commit, if the store makes one

    Raises
    ------
    InvalidArgumentError : the format is not supported; a library is missing; or state or `since` is
        given with .npy.
    CheckpointNotFoundError, TableNotFoundError : see `Table.scan`.
    StoreInUseError : another export is writing to `to`.
    CapacityError, StorageError : there is no space, or no access. After any error, an existing file
        is unchanged.
    """
    place = os.fspath(to)
    with understood(place):
        module = module_of(place, WRITTEN)
    count = rows_of_batch(table.config, batch_rows, with_state=with_state)
    how: dict[str, Any] = {"batch_rows": count, "with_state": with_state}
    with table.scan(label, since, timeout_s=timeout_s, **how) as scan, writing(place) as path:
        about = FileOrigin.of(scan)
        if since is not None:
            deleted = np.concatenate([np.empty(0, np.int64), *scan.deleted()])
            about = replace(about, deleted=packed(deleted))
            with table.scan(since) as base:
                sampled = sample(base, scan, deleted)
                about = replace(about, since_rows=base.rows, since_sample=sampled)
        writer = module.Writer(path, about, scan.rows, with_state=with_state)
        try:
            done = 0
            for keys, *arrays in scan:
                weights, state = arrays if with_state else (arrays[0], None)
                writer.write(keys, weights, state)
                done += len(keys)
                if progress is not None:
                    progress(done, scan.rows)
            writer.finish()
        finally:
            writer.close()
        return Exported(place, scan.rows, path.stat().st_size, about)

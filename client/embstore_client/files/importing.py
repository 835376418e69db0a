"""Reads a file's rows into a table, batch by batch.

Each batch is one command (contract.md, rule 7) that sets rows. An interrupted import can be
repeated from the beginning: rows that were already set are set again to the same bits. With state,
a last command without rows sets t to the file's t.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from embstore.arrays import SPARSE_ROWS, Keys, Rows
from embstore.config import TableConfig
from embstore.errors import EmbstoreError, InvalidArgumentError, StorageError
from embstore.handles.scan import DELETED_KEYS
from embstore.handles.table import Table
from embstore.hashing import hash_ids
from embstore.results import TableDescription
from embstore_client.files.base import check_base
from embstore_client.files.batching import rows_of_batch
from embstore_client.files.exporting import Progress
from embstore_client.files.file_origin import FileOrigin
from embstore_client.files.formats import READ, Batch, Reader, module_of, opened, understood
from embstore_client.files.places import reading
from embstore_client.files.values import Hashing, no_keys


@dataclass(frozen=True)
class Imported:
    """The outcome of an import."""

    rows: int
    t: int
    """The table's t after the import."""
    command: int
    """The number of the last command of the import. 0: the file has no rows."""
    deleted: int = 0
    """The number of rows that a file of changes has deleted."""


def about_file(
    place: str | os.PathLike[str], *, tensor: str | None = None, key: str | None = None
) -> FileOrigin | None:
    """Return the description of the table in a file that `export_table` wrote, or None.

    `tensor` and `key` are as in `import_table`.
    """
    named = os.fspath(place)
    with reading(named) as path, opened(path, named, tensor, key) as reader:
        return reader.about


def import_table(
    table: Table,
    source: str | os.PathLike[str],
    *,
    tensor: str | None = None,
    key: str | None = None,
    ids: Literal["keys", "hash"] = "keys",
    with_state: bool = False,
    allow_nan: bool = False,
    batch_rows: int | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Set rows of a table to the rows of a file.

    Without state, this works like `Table.assign`: it resets optimizer state, and t stays. With
    state, it works like `Table.put_rows`, with the file's t: a new table gets the exported digest.

    Parameters
    ----------
    source : a path, or a URL if fsspec is installed: .safetensors, .parquet, .npy, .npz; text with
        a header (.csv, .tsv), or in GloVe's format (.txt, .vec), also compressed (.gz, .zst, .bz2,
        .lz4); or a checkpoint of PyTorch (.pt, .pth, .bin, .ckpt) if PyTorch is installed
    tensor : name of the tensor or column that contains the rows; required if there are several
    key : name of the tensor or column that contains the keys. None: a tensor `keys`, or a column
        `key` or `id`
    ids : "hash": the file contains ids of any kind in place of keys, in any order, and their keys
        are `embstore.hash_ids(ids, feature=table.name, rows=table.rows)`. If several ids share a
        row, the row of the last id is kept. The words of .txt and .vec are such ids
    with_state : set the optimizer's state too
    allow_nan : accept NaNs, which are refused by default
    batch_rows : rows per command. None: as many rows as fit in 16 MiB
    progress : called with the number of rows done, and the total

    Raises
    ------
    InvalidArgumentError : the file is incomplete; or its rows do not fit the table, because the
        width or the optimizer differs, keys are beyond the table or not ascending, or a weight is
        NaN; or the file has only the changes since a checkpoint, and the table differs from that
        checkpoint. If rows were written before the error, the message contains their number.
        (Sparse keys can have any order; if a key is repeated, its last row is kept.)
    StorageError : the file cannot be accessed.
    """
    place = os.fspath(source)
    with understood(place):
        module_of(place, READ)
    hashed = _hashing(table, ids, with_state=with_state)
    with reading(place) as path, opened(path, place, tensor, key, hashed) as reader:
        reader.are_sparse = table.config.is_sparse
        is_in_order = hashed is None and not reader.are_sparse
        how = {"is_in_order": is_in_order, "with_state": with_state, "allow_nan": allow_nan}
        work = _Import(table, reader, place, **how)
        with understood(place):
            work.check()
        try:
            work.run(batch_rows, progress)
        except EmbstoreError as exc:
            if not work.rows:
                raise
            raise _with_rows(exc, work.rows) from exc
    return Imported(work.rows, work.t, work.command, work.deleted)


def _hashing(table: Table, ids: str, *, with_state: bool) -> Hashing | None:
    """Return the function that makes keys from a file's ids. None: the ids are keys."""
    if ids not in ("keys", "hash"):
        raise InvalidArgumentError(f'expected ids to be "keys" or "hash", found {ids!r}')
    if ids == "keys":
        return None
    if with_state:
        raise InvalidArgumentError(
            "expected no optimizer state with hashed ids: the state in a file belongs to its own "
            "keys"
        )
    return partial(hash_ids, feature=table.name, rows=table.rows)


def _with_rows(exc: EmbstoreError, rows: int) -> EmbstoreError:
    """Return an error like `exc`, whose message also contains the number of rows that were written
    before the error."""
    text = f"{exc}. {rows} rows of the file were written before; the import can be done again"
    if isinstance(exc, StorageError):
        return StorageError(exc.errno, text)
    return type(exc)(text)


class _Import:
    """One import, and its progress."""

    def __init__(
        self,
        table: Table,
        reader: Reader,
        place: str,
        *,
        is_in_order: bool,
        with_state: bool,
        allow_nan: bool,
    ) -> None:
        self.rows = self.deleted = self.command = 0
        self._table = table
        self._described: TableDescription = table.describe()
        self.t = self._described.t
        self._reader = reader
        self._place = place
        self._is_in_order = is_in_order
        self._with_state = with_state
        self._allow_nan = allow_nan
        self._last_key = -1

    def check(self) -> None:
        """Refuse a file whose rows do not fit this table."""
        config, reader = self._described.config, self._reader
        if reader.dim != config.dim:
            raise InvalidArgumentError(
                f"expected rows of {config.dim} elements, as table {config.name!r} has, found "
                f"{reader.dim}"
            )
        rows = reader.rows if reader.about is None else reader.about.config.rows
        if rows == SPARSE_ROWS and self._is_in_order:
            raise InvalidArgumentError(
                f"expected keys in [0, {config.rows}), as table {config.name!r} has, found a file "
                'of sparse keys: make the table with key_space="sparse"'
            )
        if rows > config.rows and self._is_in_order:
            raise InvalidArgumentError(
                f"expected at most the {config.rows} rows that table {config.name!r} has, found "
                f"{rows}: grow it first, table.grow({rows})"
            )
        if self._with_state:
            self._check_state(config)
        if reader.about is not None and reader.about.since is not None:
            check_base(self._table, reader.about)

    def _check_state(self, config: TableConfig) -> None:
        reader, about = self._reader, self._reader.about
        if about is None or reader.state_dim is None:
            raise InvalidArgumentError(
                "expected a file that was exported with optimizer state, found one without: "
                "import it without state"
            )
        kind, found = config.optimizer.kind, about.config.optimizer.kind
        if found != kind or reader.state_dim != config.state_dim:
            raise InvalidArgumentError(
                f"expected state of {kind}, the optimizer of table {config.name!r}, found state "
                f"of {found}: import it without state"
            )
        if self.t > about.t:
            raise InvalidArgumentError(
                f"expected table {config.name!r} to have had at most the {about.t} updates of the "
                f"file, found t = {self.t}, which cannot go back: import into a new table, or "
                "without state"
            )
        if about.since is not None and self.t not in (about.since_t, about.t):
            raise InvalidArgumentError(
                f"the file has only the rows written since checkpoint {about.since!r}: expected "
                f"table {config.name!r} as it was then, with t = {about.since_t}, found t = "
                f"{self.t}; import the file before it first"
            )

    def run(self, batch_rows: int | None, progress: Progress | None) -> None:
        """Write all rows, then t."""
        config, reader = self._described.config, self._reader
        count = rows_of_batch(config, batch_rows, with_state=self._with_state)
        batches = reader.batches(count, with_state=self._with_state)
        while (batch := self._next(batches)) is not None:
            keys, weights, state = batch
            if state is None:
                done = self._table.assign(keys, weights)
            else:
                done = self._table.put_rows(keys, weights, state, 0)
                if done.t != self.t:
                    raise InvalidArgumentError(
                        f"expected no other writer of table {config.name!r} during the import, "
                        f"found t = {done.t} in place of {self.t}: import while nothing trains "
                        "the table"
                    )
            self.rows, self.command = self.rows + len(keys), done.command
            if progress is not None:
                progress(self.rows, reader.rows)
        about = reader.about
        if about is not None:
            self._delete(about.deleted_keys)
        if self._with_state and about is not None and about.t > self.t:
            nothing = np.empty((0, config.dim)), np.empty((0, config.state_dim))
            done = self._table.put_rows([], *nothing, about.t - self.t)
            self.t, self.command = done.t, done.command

    def _delete(self, keys: Keys) -> None:
        """Delete the rows that the file of changes lists as deleted."""
        for low in range(0, len(keys), DELETED_KEYS):
            done = self._table.delete(keys[low : low + DELETED_KEYS])
            self.deleted, self.command = self.deleted + done.rows, done.command

    def _next(self, batches: Iterator[Batch]) -> Batch | None:
        """Check and return the next batch; None at the end."""
        with understood(self._place):
            batch = next(batches, None)
            if batch is not None:
                self._check_batch(batch[0], batch[1:])
            return batch

    def _check_batch(self, keys: Keys, arrays: tuple[Rows, Rows | None]) -> None:
        before = np.concatenate([[self._last_key], keys[:-1]])
        wrong = np.flatnonzero(keys <= before)
        if len(wrong) and self._is_in_order:
            at = int(wrong[0])
            raise no_keys("keys that rise from 0, each once", f"{keys[at]} after {before[at]}")
        self._last_key = int(keys[-1]) if len(keys) else self._last_key
        for rows in arrays:
            if rows is not None and rows.size and not self._allow_nan and np.isnan(rows.min()):
                key = int(keys[np.flatnonzero(np.isnan(rows).any(axis=1))[0]])
                raise InvalidArgumentError(
                    f"expected no NaN, found one in the row of key {key}: correct the file, or "
                    "allow them (allow_nan=True, --allow-nan)"
                )

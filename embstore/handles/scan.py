"""A scan: the written rows of a table in order, page by page.

The order is by key; a table with sparse keys has the order in which they were first written.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

from embstore import commands as c
from embstore.arrays import Keys, Rows
from embstore.commands import Executor
from embstore.config import TableConfig
from embstore.errors import EmbstoreError
from embstore.layout import VALUE_BYTES
from embstore.results import ScannedRows

BATCH_BYTES = 8 << 20
"""The bytes of a batch of rows whose length is not given: larger ones are no faster."""


DELETED_KEYS = 1 << 20
"""The keys of a batch of deleted keys."""


class Scan:
    """An iterator over a table's written rows by ascending key, all as of one command.

    Each batch is (keys (n,) int64, weights (n, dim) float32), and state (n, state_dim) float32
    where it was asked for. A scan is closed at its end, by `close`, and as a context manager; its
    end is that of its rows and, with `since`, of its deleted keys, whichever come later. A store
    ends a scan that has not been read for ten minutes. One thread at a time.

    Raises, when a batch, a page or deleted keys are asked for
    ----------------------------------------------------------
    SessionExpiredError : the scan has ended: see there, or the store was restored or opened again.
        Batches of a scan that was closed are no error: there are no more.
    CorruptTableError : a record differs from its written bytes.
    """

    def __init__(
        self,
        executor: Executor,
        table: str,
        table_id: int,
        *,
        label: str | None = None,
        since: str | None = None,
        batch_rows: int | None = None,
        with_state: bool = False,
        timeout_s: float | None = None,
        moved: bool = False,
    ) -> None:
        self._executor = executor
        self._name = os.urandom(16).hex()
        self._low = 0  # the lowest key that has not come
        self._is_open = True
        opening = c.OpenScan(self._name, table, table_id, label, since, moved)
        facts = executor.execute(opening, timeout_s=timeout_s)
        self.label = label
        """The checkpoint that is read; None: a commit made for the scan."""
        self.since = since
        """The checkpoint whose rows are left out unless they were written again; None: none are."""
        self.command: int = facts.command
        """The last command whose effect the rows have."""
        self.since_command: int = facts.since_command
        self.config: TableConfig = facts.table.config
        """The table's configuration at that command, with its rows and learning rate."""
        self.t: int = facts.table.t
        """The table's t at that command."""
        self.since_t: int = facts.since_t
        """The table's t at the checkpoint `since`."""
        self.rows: int = facts.rows
        """The number of rows that come, in all batches."""
        self.deleted_rows: int = facts.deleted
        """The number of rows that existed at the checkpoint `since` and do not exist any more."""
        self.with_state = with_state
        self._table = table
        self._left = facts.rows
        self._rows_came = False  # their end was asked for
        self._deleted_came = not facts.deleted
        state_dim = self.config.state_dim if with_state else 0
        row_bytes = VALUE_BYTES * (self.config.dim + state_dim)
        self._batch_rows = batch_rows or max(BATCH_BYTES // row_bytes, 1)

    def __enter__(self) -> "Scan":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> "Scan":
        return self

    def __next__(self) -> tuple[Keys, Rows] | tuple[Keys, Rows, Rows]:
        """Return the next batch."""
        if not self._left or not self._is_open:
            self._rows_came = True
            self._close_at_end()
            raise StopIteration
        page = self.read(self._low, self._batch_rows)
        self._low, self._left = page.after, self._left - len(page.keys)
        return _batch(page)

    def page(self, low: int, rows: int) -> tuple[Keys, Rows] | tuple[Keys, Rows, Rows]:
        """Return the first rows whose key is not below `low`, at most `rows`, as a batch.

        Batches are the same before and afterwards.
        """
        return _batch(self.read(low, rows))

    def read(self, low: int, rows: int) -> ScannedRows:
        """Return the same, with the next page's `low`; with sparse keys that is no key."""
        read = c.ReadScan(self._name, self._table, low, rows, self.with_state)
        return self._executor.execute(read)

    def deleted(self, batch_keys: int = DELETED_KEYS) -> Iterator[Keys]:
        """Yield the keys of rows that were deleted after the checkpoint `since`, ascending: (n,)
        int64 each time, n at most `batch_keys`. Before the rows, between them or behind them, once
        or several times, until the scan is closed.

        The rows at `since` become the rows of now if the scan's rows are set and these keys are
        deleted.
        """
        low, left = 0, self.deleted_rows
        while left:
            page = self._executor.execute(
                c.ReadScan(self._name, self._table, low, batch_keys, deleted=True)
            )
            yield page.keys
            low, left = page.after, left - len(page.keys)
        self._deleted_came = True
        self._close_at_end()

    def _close_at_end(self) -> None:
        if self._rows_came and self._deleted_came:
            self.close()

    def close(self) -> None:
        """End the scan. Closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            with suppress(EmbstoreError):  # the store ends it by itself, sooner or later
                self._executor.execute(c.CloseScan(self._name, self._table))


def _batch(page: ScannedRows) -> tuple[Keys, Rows] | tuple[Keys, Rows, Rows]:
    if page.state is None:
        return page.keys, page.rows
    return page.keys, page.rows, page.state

"""A scan: the written rows of a table in order, page by page.

The order is by key. A table with sparse keys has the order in which its keys were first written.
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
"""The bytes of a batch if the caller gives no number of rows. Larger batches are no faster."""


DELETED_KEYS = 1 << 20
"""The number of keys in a batch of deleted keys."""


class Scan:
    """An iterator over a table's written rows by ascending key. All rows are as they were after the
    same command.

    Each batch is (keys (n,) int64, weights (n, dim) float32), followed by state (n, state_dim)
    float32 if the caller asked for it. A scan is closed when its end is reached, when `close` is
    called, and when its `with` block ends. With `since`, a scan is at its end when its rows and its
    deleted keys have been read. A store ends a scan that has not been read for ten minutes. One
    thread at a time can use a scan.

    Raises, when a batch, a page or deleted keys are read
    -----------------------------------------------------
    SessionExpiredError : the store has ended the scan, because it was not read for ten minutes, or
        because the store was restored or opened again. A closed scan raises nothing, and yields no
        more batches.
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
        self._low = 0  # the lowest key that has not been read
        self._is_open = True
        opening = c.OpenScan(self._name, table, table_id, label, since, moved)
        facts = executor.execute(opening, timeout_s=timeout_s)
        self.label = label
        """The checkpoint that is read; None: a commit that was made for the scan."""
        self.since = since
        """The checkpoint whose rows the scan omits unless they were written again; None: it omits
        no rows."""
        self.command: int = facts.command
        """The number of the last command whose effect the rows contain."""
        self.since_command: int = facts.since_command
        self.config: TableConfig = facts.table.config
        """The table's configuration as of command number `command`, including the number of rows
        and the learning rate."""
        self.t: int = facts.table.t
        """The table's t at `command`."""
        self.since_t: int = facts.since_t
        """The table's t, its number of applied updates, at the checkpoint `since`."""
        self.rows: int = facts.rows
        """The number of rows in all batches."""
        self.deleted_rows: int = facts.deleted
        """The number of rows that existed at the checkpoint `since` and no longer exist."""
        self.with_state = with_state
        self._table = table
        self._left = facts.rows
        self._rows_came = False  # whether the batch after the last one was asked for
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
        """Return a batch of the first `rows` rows, or fewer, whose keys are not below `low`.

        The position of the iteration does not change.
        """
        return _batch(self.read(low, rows))

    def read(self, low: int, rows: int) -> ScannedRows:
        """Return the rows that `page` would return, and the argument `low` with which the next page
        begins.

        For sparse keys, `low` is a position in the stored order and not a key.
        """
        read = c.ReadScan(self._name, self._table, low, rows, self.with_state)
        return self._executor.execute(read)

    def deleted(self, batch_keys: int = DELETED_KEYS) -> Iterator[Keys]:
        """Yield the keys of rows that were deleted after the checkpoint `since`, ascending, in
        int64 arrays of at most `batch_keys` keys.

        The keys can be read before, between or after the rows, once or several times, until the
        scan is closed. To turn the rows at `since` into the current rows, set the scan's rows and
        delete these keys.
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
            with suppress(EmbstoreError):  # the store will end the scan by itself
                self._executor.execute(c.CloseScan(self._name, self._table))


def _batch(page: ScannedRows) -> tuple[Keys, Rows] | tuple[Keys, Rows, Rows]:
    if page.state is None:
        return page.keys, page.rows
    return page.keys, page.rows, page.state

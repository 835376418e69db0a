"""Digests of a running store, made one at a time in the calling thread, concurrently with other
calls.

A digest describes the table as of the moment when the digest began; its result contains the command
number of that moment. If the table is restored meanwhile, the digest begins again with the restored
rows.
"""

import threading
from functools import partial

from embstore.commands import Progress
from embstore.results import Digest, Leaves
from embstore.tables.slices import Slices
from embstore.tables.state import TableState
from embstore.tables.tables import Tables

LEAVES_MAX = 1 << 14
"""Maximum number of leaves in one answer; they take 640 KiB."""


class _GoneError(Exception):
    """The table was dropped or restored."""


class Digests:
    """The digests of one store. Any thread."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lock = threading.Lock()

    def compute(self, name: str, table_id: int | None, progress: Progress | None) -> Digest:
        """Return the digest of a table.

        Raises
        ------
        TableNotFoundError, StoreClosedError, CorruptTableError : the digest cannot be made.
        Exception : an error of `progress`.
        """
        slices = Slices(self._tables.frame, progress)
        with slices.after_others(self._lock):
            return self._current(name, table_id, slices, progress)[0]

    def leaves(
        self, name: str, table_id: int | None, low: int, progress: Progress | None
    ) -> Leaves:
        """Return the digest of a table, and the leaves of the table's blocks from block `low` on.

        At most LEAVES_MAX leaves are returned. Raises the errors of `compute`.
        """
        slices = Slices(self._tables.frame, progress)
        with slices.after_others(self._lock):
            digest, table = self._current(name, table_id, slices, progress)
            return Leaves(digest, table.digest.records(table.table_id, low, LEAVES_MAX))

    def _current(
        self, name: str, table_id: int | None, slices: Slices, progress: Progress | None
    ) -> tuple[Digest, TableState]:
        """Return the table's present digest, and the table's state, which contains the leaves."""
        while True:
            with slices.one():
                table = self._tables.find(name, table_id)
                t, command = table.t, self._tables.frame.command_number
                table.digest.begin(table.pool, table.table_id)
            try:
                digest = self._computed(table, t, progress)
            except _GoneError:
                continue
            return Digest(digest, t, command), table

    def _computed(self, table: TableState, t: int, progress: Progress | None) -> str:
        slices = Slices(self._tables.frame, progress, partial(self._check, table))
        return table.digest.compute(slices, table.identity_json, t)

    def _check(self, table: TableState) -> None:
        if self._tables.by_id.get(table.table_id) is not table:
            raise _GoneError

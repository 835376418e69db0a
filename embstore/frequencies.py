"""What an open store knows of how often its rows are used: its own counts, and imported profiles.

The counts (accesses.py) and the files (kept.py) know tables by id; here they meet the tables: what
the directory has of a table is taken up when the table is, its levels go to its pool where the
policy goes by them, and what was counted is written when the store is closed.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from embstore.device.base import Device
from embstore.errors import EmbstoreError
from embstore.frequency.accesses import Accesses, TableAccess
from embstore.frequency.kept import KeptFiles, KeptProfiles
from embstore.frequency.levels import RowLevels
from embstore.tablestate import Share, TableState


class Frequencies:
    """The access frequencies of one store. Engine thread only."""

    def __init__(
        self, files: KeptFiles, device: Device, *, count_rate: float, read_only: bool
    ) -> None:
        self.accesses = Accesses(count_rate)
        self.kept = KeptProfiles(files, read_only=read_only)
        self.profiled_rows: dict[int, int] = {}
        """By table id: how many rows of it the imported profile ranks."""
        self._device = device

    def take_up(self, table: TableState) -> None:
        """Go by what the directory knows of a table."""
        imported = self.kept.profile("imported", table.table_id)
        if imported is not None:
            self.rank(table, len(imported[0].keys), RowLevels(*imported))
        if self.accesses.rate:
            counted = self.kept.profile("counted", table.table_id)
            if counted is not None:
                self.accesses.resume(table.table_id, counted[0])

    def rank(self, table: TableState, rows: int, levels: RowLevels) -> None:
        """Rank a table's rows, `rows` of which have a profile."""
        self.profiled_rows[table.table_id] = rows
        if table.pool.policy_name == "rank":
            table.pool.ranks.tables[table.table_id] = levels

    def forget(self, table: TableState) -> None:
        """Let a table go."""
        self.accesses.forget(table.table_id)
        self.profiled_rows.pop(table.table_id, None)

    def note(self, shares: Sequence[Share]) -> None:
        """Count a lookup, if it is one of those that are counted."""
        if self.accesses.begin_call():
            self.accesses.note(
                TableAccess(
                    share.table.table_id,
                    share.table.name,
                    self._device.download(share.keys),
                    share.counts,
                )
                for share in shares
            )

    def keep_counts(self, tables: Iterable[TableState]) -> None:
        """Write what was counted. Where the disk refuses, the counts of before stay."""
        with suppress(EmbstoreError):
            for table in tables if self.accesses.counted_calls else ():
                counted = self.accesses.table_profile(table.table_id, table.name, table.rows)
                self.kept.keep("counted", table.table_id, counted, self.accesses.rate)

"""The access frequencies that an open store knows: its own counts, and imported profiles.

The counts (accesses.py) and the files (kept.py) identify tables by id; this module connects them
with the tables. A table's files are loaded with the table. The table's levels, which are the counts
of its profile in eleven bits, are given to the table's pool if the eviction policy uses levels. The
table's counts are written when the store is closed.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from embstore.cache.levels import RowLevels
from embstore.device.base import Device
from embstore.errors import EmbstoreError
from embstore.hotness.accesses import Accesses, TableAccess, within
from embstore.hotness.kept import KeptProfiles
from embstore.storage.files import Files
from embstore.tables.state import Share, TableState


class Frequencies:
    """The access frequencies of one store. Engine thread only, except `kept` and `importing`.

    Parameters
    ----------
    looked_up : called for every lookup, whether or not the lookup is counted
    """

    def __init__(
        self,
        files: Files,
        device: Device,
        *,
        count_rate: float,
        read_only: bool,
        looked_up: Callable[[Sequence[Share]], None],
    ) -> None:
        self.accesses = Accesses(count_rate)
        self.kept = KeptProfiles(files, read_only=read_only)
        self.importing = threading.Lock()
        """A lock that an import holds until its profile is written and applied, so that the file
        and the ranks agree."""
        self.profiled_rows: dict[int, int] = {}
        """The number of rows that a table's imported profile ranks, by table id."""
        self._device = device
        self._looked_up = looked_up

    def load(self, table: TableState) -> None:
        """Load a table's imported profile and its counts from the directory."""
        imported = self.kept.profile("imported", table.table_id)
        if imported is not None:
            profile = within(imported[0], table.rows)
            levels = RowLevels(profile, imported[1]) if table.pool.policy.has_levels else None
            self.rank(table, len(profile.keys), levels)
        if self.accesses.rate and table.table_id not in self.accesses.counters:
            counted = self.kept.profile("counted", table.table_id)
            if counted is not None:
                self.accesses.resume(table.table_id, *counted, table.rows)

    def rank(self, table: TableState, rows: int, levels: RowLevels | None) -> None:
        """Record that `rows` rows of a table have a profile; give the table's levels to its pool.

        levels : None if the policy has no levels
        """
        self.profiled_rows[table.table_id] = rows
        if levels is not None:
            table.pool.ranks.tables[table.table_id] = levels

    def forget(self, table: TableState) -> None:
        """Delete the counts of a table that was removed, and the record of its profile."""
        self.accesses.forget(table.table_id, table.name)
        self.profiled_rows.pop(table.table_id, None)

    def roll_back(self, tables: Iterable[TableState], rows: Mapping[int, int]) -> None:
        """Forget tables and rows that a restore removes. `rows` has the number of rows of each
        restored table, by id."""
        for table in tables:
            if table.table_id not in rows:
                self.forget(table)
            elif rows[table.table_id] < table.rows:
                self.accesses.cut(table.table_id, table.name, rows[table.table_id])

    def clear_counts(self) -> None:
        """Start counting from zero, and delete the counts on the disk."""
        self.accesses.clear()
        self.kept.forget_counted()

    def note(self, shares: Sequence[Share]) -> None:
        """Record a lookup: the number of its keys, and the keys if the lookup is counted."""
        for share in shares:
            count = len(share.keys) if share.counts is None else share.accesses
            share.table.lookup_keys += count
        self._looked_up(shares)
        if self.accesses.begin_call():
            download = self._device.memory.download
            self.accesses.note(
                TableAccess(s.table.table_id, s.table.name, download(s.keys), s.counts)
                for s in shares
            )

    def keep_counts(self, tables: Iterable[TableState]) -> None:
        """Write the counts that have changed. If the write for a table fails, the table's previous
        file stays."""
        for table in [table for table in tables if table.table_id in self.accesses.changed]:
            with suppress(EmbstoreError):
                counted = self.accesses.table_profile(table.table_id, table.name, table.known_rows)
                self.kept.keep("counted", table.table_id, counted, self.accesses.rate)
                self.accesses.changed.discard(table.table_id)

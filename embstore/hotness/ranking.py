"""Export and import of access frequencies: the store's own counts, and profiles of callers.

An imported profile ranks the rows of its tables. Under the rank policy, the ranks decide which rows
leave the cache. Under LFU, resident rows start with counts in proportion to the counts in the
profile. Warm-up uses the profile under every policy. A profile is checked completely before
anything changes, and then kept in the directory (kept.py). No row, no t and no digest depends on
it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.cache.levels import RowLevels
from embstore.cache.policies import POLICIES, policy_of
from embstore.cache.pool import Pool
from embstore.commands import Progress
from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.hotness.accesses import at_rate, no_counts, within
from embstore.hotness.frequencies import Frequencies
from embstore.profiles.profile import Counts, Profile, TableProfile, Trace
from embstore.tables.slices import Slices
from embstore.tables.state import TableState
from embstore.tables.tables import Tables

PIECE_SLOTS = 1 << 17
"""Number of slots that are ranked at once; this takes a few milliseconds of the engine."""


class Ranking:
    """Export and import of a store's profiles. Any thread."""

    def __init__(self, tables: Tables, frequencies: Frequencies) -> None:
        self._tables = tables
        self._frequencies = frequencies

    def export_profile(self, source: str, progress: Progress | None = None) -> Profile:
        """Return the counts, or the imported profiles, as `source` says. If a table has none, its
        profile is empty.

        Other calls can run during an export. They wait only when the counts of a table are copied,
        one table at a time. An exception of `progress` ends the export.
        """
        slices = Slices(self._tables.frame, progress)
        with slices.one():
            tables = self._tables.sorted()
        return self._counted(tables, slices) if source == "counted" else self._imported(tables)

    def _counted(self, tables: Sequence[TableState], slices: Slices) -> Profile:
        accesses, copies = self._frequencies.accesses, []
        for table_id in [table.table_id for table in tables]:
            with slices.one():
                table = self._tables.by_id.get(table_id)
                if table is not None:  # a restore may have replaced or removed it
                    copies.append((table.name, table.known_rows, accesses.copied(table_id)))
        with slices.one():
            trace = accesses.recorder.copied()
        profiles = [
            no_counts(name, rows) if copy is None else copy.profile(name, rows)
            for name, rows, copy in copies
        ]
        return Profile(
            {profile.name: profile for profile in profiles},
            rate=accesses.rate or 1.0,
            trace=Trace(**trace),
            store_id=self._tables.storage.catalogue.store_id,
        )

    def _imported(self, tables: Sequence[TableState]) -> Profile:
        kept = [self._frequencies.kept.profile("imported", table.table_id) for table in tables]
        rates = {found[1] for found in kept if found}
        rate = rates.pop() if len(rates) == 1 else 1.0
        profiles = {
            table.name: no_counts(table.name, table.known_rows)
            if found is None
            else at_rate(within(found[0], table.rows), found[1], rate)
            for table, found in zip(tables, kept, strict=True)
        }
        return Profile(profiles, rate=rate, store_id=self._tables.storage.catalogue.store_id)

    def import_profile(self, profile: Profile, rename: dict[str, str]) -> None:
        """Import a profile: from now on it ranks the rows of its tables, as `Store.import_profile`
        describes.

        Imports run one at a time. Other calls can run during an import; if such a call changes a
        table, the import takes the change into account. If the profile cannot be written, some of
        the tables may be ranked by it.
        """
        with Slices(self._tables.frame).after_others(self._frequencies.importing):
            with self._tables.reading():
                self._tables.storage.check_usable(write=True)
                found = self._checked(profile, rename)
            for table_id, given in found.items():
                self._frequencies.kept.keep("imported", table_id, given, profile.rate)
            self._rank(found, profile.rate)

    def set_policy(self, name: str) -> None:
        """Replace the eviction policy, as `Store.set_policy` does.

        Tables that are created after the first slice of this work have the new policy. Counts of
        the old policy are deleted before profiles are applied. Other calls can run meanwhile.
        """
        policy = policy_of(name)
        with Slices(self._tables.frame).after_others(self._frequencies.importing):
            with self._tables.reading():
                self._tables.policy = policy.name
                pools = list(self._tables.pools.values())
                for pool in pools:
                    pool.set_policy(policy)
                tables = self._tables.sorted()
            self._piecewise(pools, lambda pool, low, high: pool.residency.rank_again(low, high))
            imported = self._imported(tables)
            found = {table.table_id: imported.tables[table.name] for table in tables}
            self._rank({i: one for i, one in found.items() if len(one.keys)}, imported.rate)

    def _checked(self, profile: Profile, rename: dict[str, str]) -> dict[int, TableProfile]:
        """Check a profile; return the profiles of its tables by table id."""
        unknown = sorted(rename.keys() - profile.tables.keys())
        if unknown:
            raise InvalidArgumentError(
                f"expected rename to name tables of the profile {sorted(profile.tables)}, found "
                f"{unknown}"
            )
        targets = {name: rename.get(name, name) for name in profile.tables}
        if len(set(targets.values())) < len(targets):
            raise InvalidArgumentError(f"expected each table to get one profile, found {targets}")
        found = {}
        for name, target in targets.items():
            table, given = self._found(target, name), profile.tables[name]
            if given.key_bound > table.rows:
                raise InvalidArgumentError(
                    f"table {target!r} has {table.rows} rows, the profile of {name!r} is of a "
                    f"table of {given.key_bound} or more: it belongs to another table, or was "
                    "counted after the table had grown; give another profile"
                )
            found[table.table_id] = replace(given, name=target, rows=table.known_rows)
        return found

    def _found(self, target: str, name: str) -> TableState:
        try:
            return self._tables.find(target)
        except TableNotFoundError as exc:
            raise TableNotFoundError(
                f"the profile has table {name!r}: {exc}; rename={{{name!r}: ...}} names the table "
                "that it is for"
            ) from exc

    def _rank(self, found: Mapping[int, TableProfile], rate: float) -> None:
        """Rank tables and their resident rows by the tables' profiles, which `found` has by table
        id."""
        levels: dict[int, RowLevels] = {}
        if POLICIES[self._tables.policy].has_levels:
            levels = {table_id: RowLevels(given, rate) for table_id, given in found.items()}
        with self._tables.reading():
            pools: dict[int, Pool] = {}
            for table_id, given in found.items():
                table = self._tables.by_id.get(table_id)
                if table is not None:  # a restore may have replaced or removed it
                    self._frequencies.rank(table, len(given.keys), levels.get(table_id))
                    pools[id(table.pool)] = table.pool
        self._piecewise(pools.values(), partial(_rank_slots, found))

    def _piecewise(self, pools: Iterable[Pool], rank: Callable[[Pool, int, int], None]) -> None:
        """Rank the rows in all slots of some pools; `rank(pool, low, high)` ranks the rows in slots
        [low, high).

        Rows that change slots meanwhile keep their levels. Their counts for LFU may be lost, and
        then begin again.
        """
        for pool in pools:
            low = 0
            while True:
                with self._tables.background():
                    if pool not in self._tables.pools.values() or low >= pool.slots.count:
                        break
                    high = min(low + PIECE_SLOTS, pool.slots.count)
                    rank(pool, low, high)
                    low = high


def _rank_slots(found: Mapping[int, TableProfile], pool: Pool, low: int, high: int) -> None:
    """Rank the rows in slots [low, high) of a pool by the profiles of their tables; `found` has the
    profiles by table id."""
    if pool.policy.counts_touches:
        _seed(pool, found, low, high)
    elif pool.policy.has_levels:
        pool.residency.rank_again(low, high)


def _seed(pool: Pool, found: Mapping[int, TableProfile], low: int, high: int) -> None:
    keys = pool.device.slots.read_range(pool.slots.memory, low, high).keys
    for table_id in found.keys() & pool.tables:
        given = found[table_id]
        places = np.flatnonzero(pool.row_keys.are_of(keys, table_id))
        if len(places):
            counts = _counts_of(given, pool.row_keys.keys(keys[places]))
            pool.scores.seed(low + places, counts, given.accesses)


def _counts_of(profile: TableProfile, keys: NDArray[np.int64]) -> Counts:
    if not len(profile.keys):
        return np.zeros(len(keys), np.int64)
    places = np.minimum(np.searchsorted(profile.keys, keys), len(profile.keys) - 1)
    return np.where(profile.keys[places] == keys, profile.counts[places], 0)

"""What a store knows of how often its rows are used: counts of its own, and profiles it was given.

A profile that is imported ranks the rows of its tables: under the rank policy it decides what
leaves the cache, warm-up goes by it under every policy, and under LFU rows that are there start
with counts in its proportion. It is checked whole before anything changes, and kept in the
directory (kept.py). No row, no t and no digest depends on any of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK
from embstore.cache.policy import AGEING_TOUCHES
from embstore.cache.pool import Pool
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.frequency.accesses import at_rate, no_counts, within
from embstore.frequency.levels import RowLevels
from embstore.frequency.profile import Counts, Profile, TableProfile, Trace
from embstore.hotpins import turn
from embstore.kernels.slots import COUNT_MAX
from embstore.tablestate import TableState

PIECE_SLOTS = 1 << 17
"""Ranked at once: a few milliseconds of the engine's."""


def export_profile(engine: Engine, source: str) -> Profile:
    """Return what was counted, or what was imported; tables without either are there, empty.

    Other calls go on in between: only copies are made while they wait, of a table at a time.

    Raises
    ------
    InvalidArgumentError : neither "counted" nor "imported".
    """
    if source not in ("counted", "imported"):
        raise InvalidArgumentError(
            f'expected source to be "counted" or "imported", found {source!r}'
        )
    with engine.reading():
        tables = sorted(engine.tables.values(), key=lambda table: table.name)
    return _counted(engine, tables) if source == "counted" else _imported(engine, tables)


def _counted(engine: Engine, tables: Sequence[TableState]) -> Profile:
    accesses, copies = engine.frequencies.accesses, []
    for table_id in [table.table_id for table in tables]:
        with engine.background():
            table = engine.tables.get(table_id)  # a restore has made it anew, or it is gone
            if table is not None:
                copies.append((table.name, table.rows, accesses.copied(table_id)))
    with engine.background():
        trace = accesses.copied_trace()
    profiles = [
        no_counts(name, rows) if copy is None else copy.profile(name, rows)
        for name, rows, copy in copies
    ]
    return Profile(
        {profile.name: profile for profile in profiles},
        rate=accesses.rate or 1.0,
        trace=Trace(**trace),
        store_id=engine.storage.catalogue.store_id,
    )


def _imported(engine: Engine, tables: Sequence[TableState]) -> Profile:
    kept = [engine.frequencies.kept.profile("imported", table.table_id) for table in tables]
    rates = {found[1] for found in kept if found}
    rate = rates.pop() if len(rates) == 1 else 1.0
    profiles = {
        table.name: no_counts(table.name, table.rows)
        if found is None
        else at_rate(within(found[0], table.rows), found[1], rate)
        for table, found in zip(tables, kept, strict=True)
    }
    return Profile(profiles, rate=rate, store_id=engine.storage.catalogue.store_id)


def import_profile(engine: Engine, profile: Profile, rename: Mapping[str, str] | None) -> None:
    """Rank the rows of the profile's tables by it.

    One import after the other. Other calls go on in between; what one of them has done to a table,
    the import finds.

    Parameters
    ----------
    rename : names of tables by the names that they have in the profile

    Raises
    ------
    InvalidArgumentError, TableNotFoundError : it is no profile, or not of this store's tables.
        Nothing has changed.
    CapacityError, StorageError, StoreClosedError : it could not be kept; some tables may have it.
    """
    if not isinstance(profile, Profile):
        raise InvalidArgumentError(f"expected a Profile, found {type(profile).__name__}")
    renamed = _checked_names({} if rename is None else rename)
    with turn(engine.frequencies.importing, engine):
        with engine.reading():
            engine.storage.check_usable(write=True)
            found = _checked(engine, profile, renamed)
        for table_id, given in found.items():
            engine.frequencies.kept.keep("imported", table_id, given, profile.rate)
        _rank(engine, found, profile.rate)


def _checked_names(rename: object) -> dict[str, str]:
    is_so = isinstance(rename, Mapping) and all(
        isinstance(name, str) for pair in rename.items() for name in pair
    )
    if not is_so:
        raise InvalidArgumentError(
            f"expected rename to be a mapping of names to names, found {rename!r}"
        )
    return dict(cast(Mapping[str, str], rename))


def _checked(engine: Engine, profile: Profile, rename: dict[str, str]) -> dict[int, TableProfile]:
    """Return the profiles by the ids of their tables."""
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
        table, given = _found(engine, target, name), profile.tables[name]
        bound = given.key_bound
        if bound > table.rows:
            raise InvalidArgumentError(
                f"table {target!r} has {table.rows} rows, the profile of {name!r} is of a table of "
                f"{bound} or more: it is another table's, or was counted after it had grown"
            )
        found[table.table_id] = replace(given, name=target, rows=table.rows)
    return found


def _found(engine: Engine, target: str, name: str) -> TableState:
    try:
        return engine.find(target)
    except TableNotFoundError as exc:
        raise TableNotFoundError(
            f"the profile has table {name!r}: {exc}; rename={{{name!r}: ...}} names the table that "
            "it is for"
        ) from exc


def _rank(engine: Engine, found: Mapping[int, TableProfile], rate: float) -> None:
    """Have tables, by id, go by their profiles, and then the rows of theirs that are resident."""
    levels: dict[int, RowLevels] = {}
    if engine.policy == "rank":
        levels = {table_id: RowLevels(given, rate) for table_id, given in found.items()}
    with engine.reading():
        pools: dict[int, Pool] = {}
        for table_id, given in found.items():
            table = engine.tables.get(table_id)  # a restore has made it anew, or it is gone
            if table is not None:
                engine.frequencies.rank(table, len(given.keys), levels.get(table_id))
                pools[id(table.pool)] = table.pool
    for pool in pools.values():
        low = 0
        while low >= 0:
            low = _rank_piece(engine, pool, found, low)


def _rank_piece(engine: Engine, pool: Pool, found: Mapping[int, TableProfile], low: int) -> int:
    """Rank the rows of some slots from `low` on; return where the next begin, -1: nowhere.

    Rows that change slots meanwhile come with their levels, but not with LFU's counts: some of them
    may have to earn these.
    """
    with engine.background():
        if pool not in engine.pools.values() or low >= pool.slot_count:
            return -1
        high = min(low + PIECE_SLOTS, pool.slot_count)
        if pool.policy_name == "lfu":
            _seed(pool, found, low, high)
        pool.rank_again(low, high)
        return high


def _seed(pool: Pool, found: Mapping[int, TableProfile], low: int, high: int) -> None:
    keys = pool.device.read_range(pool.memory, low, high).keys
    for table_id in found.keys() & pool.tables:
        given = found[table_id]
        places = np.flatnonzero(keys >> KEY_BITS == table_id)
        if len(places):
            counts = _counts_of(given, keys[places] & KEY_MASK)
            pool.policy.seed(low + places, lfu_counts(counts, given.accesses, pool))


def _counts_of(profile: TableProfile, keys: NDArray[np.int64]) -> Counts:
    if not len(profile.keys):
        return np.zeros(len(keys), np.int64)
    places = np.minimum(np.searchsorted(profile.keys, keys), len(profile.keys) - 1)
    return np.where(profile.keys[places] == keys, profile.counts[places], 0)


def lfu_counts(counts: Counts, accesses: int, pool: Pool) -> NDArray[np.int64]:
    """Return what LFU would have counted by now of rows with these profiled counts, about.

    A row that takes a share of the touches gets that share of those between two halvings, twice
    over (half of them, and half of the half before, and so on).
    """
    touches = 2 * AGEING_TOUCHES * pool.slot_count
    expected = np.rint(counts * (touches / max(accesses, 1)))
    counted: NDArray[np.int64] = np.clip(expected, 1, COUNT_MAX).astype(np.int64)
    return counted


def frequency_figures(engine: Engine) -> dict[str, Any]:
    """Return what is known of frequencies, as plain numbers. Engine thread."""
    tables = {
        t.name: engine.frequencies.accesses.table_facts(t.table_id)
        | {"profile_rows": engine.frequencies.profiled_rows.get(t.table_id, 0)}
        for t in engine.tables.values()
    }
    levels = [levels for pool in engine.pools.values() for levels in pool.ranks.tables.values()]
    return engine.frequencies.accesses.facts() | {
        "tables": tables,
        "levels_bytes": sum(one.memory_bytes for one in levels),
        "unreadable": sorted(engine.frequencies.kept.unreadable),
    }

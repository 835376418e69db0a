"""What a store knows of how often its rows are used: counts of its own, and profiles it was given.

A profile that is imported ranks the rows of its tables: under the rank policy it decides what
leaves the cache, warm-up goes by it under every policy, and under LFU rows that are there start
with counts in its proportion. It is checked whole before anything changes, and kept in the
directory (kept.py). No row, no t and no digest depends on any of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK
from embstore.cache.policy import AGEING_TOUCHES
from embstore.cache.pool import Pool
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.frequency.accesses import no_counts
from embstore.frequency.levels import RowLevels
from embstore.frequency.profile import Counts, Profile, TableProfile
from embstore.kernels.slots import COUNT_MAX
from embstore.tablestate import TableState

Source = Literal["counted", "imported"]


def export_profile(engine: Engine, source: str) -> Profile:
    """Return what was counted, or what was imported; tables without either are there, empty.

    Raises
    ------
    InvalidArgumentError : neither "counted" nor "imported".
    """
    if source not in ("counted", "imported"):
        raise InvalidArgumentError(
            f'expected source to be "counted" or "imported", found {source!r}'
        )
    store_id = engine.storage.catalogue.store_id
    if source == "counted":
        with engine.reading():
            accesses = engine.frequencies.accesses
            tables = [accesses.table_profile(t.table_id, t.name, t.rows) for t in _all(engine)]
            return accesses.profile(tables, store_id)
    with engine.reading():
        names = {t.table_id: (t.name, t.rows) for t in _all(engine)}
    kept = {table_id: engine.frequencies.kept.profile("imported", table_id) for table_id in names}
    rates = {found[1] for found in kept.values() if found}
    rate = rates.pop() if len(rates) == 1 else 1.0
    tables = [
        no_counts(*names[table_id]) if found is None else _at_rate(*found, rate)
        for table_id, found in kept.items()
    ]
    return Profile({table.name: table for table in tables}, rate=rate, store_id=store_id)


def _all(engine: Engine) -> Sequence[TableState]:
    return sorted(engine.tables.values(), key=lambda table: table.name)


def _at_rate(table: TableProfile, counted: float, rate: float) -> TableProfile:
    """Return a profile as one that counted another share would have found it, about."""
    if counted == rate:
        return table
    counts = np.maximum(np.rint(table.counts * (rate / counted)), 1).astype(np.int64)
    accesses = max(int(counts.sum()), round(table.accesses * rate / counted))
    return replace(table, counts=counts, accesses=accesses)


def import_profile(engine: Engine, profile: Profile, rename: Mapping[str, str] | None) -> None:
    """Rank the rows of the profile's tables by it.

    Parameters
    ----------
    rename : names of tables by the names that they have in the profile

    Raises
    ------
    InvalidArgumentError, TableNotFoundError : it is no profile, or not of this store's tables.
        Nothing has changed.
    CapacityError, StorageError : it could not be kept; some tables may have it.
    """
    if not isinstance(profile, Profile):
        raise InvalidArgumentError(f"expected a Profile, found {type(profile).__name__}")
    with engine.reading():
        engine.storage.check_usable(write=True)
        found = _checked(engine, profile, dict(rename or {}))
    for table, given in found:
        engine.frequencies.kept.keep("imported", table.table_id, given, profile.rate)
    levels = {t.table_id: RowLevels(given, profile.rate) for t, given in found}
    with engine.reading():
        for table, given in found:
            if table.table_id in engine.tables:
                _rank(engine, table, given, levels[table.table_id])
        for pool in engine.pools.values():
            pool.rank_again()


def _checked(
    engine: Engine, profile: Profile, rename: dict[str, str]
) -> list[tuple[TableState, TableProfile]]:
    unknown = sorted(rename.keys() - profile.tables.keys())
    if unknown:
        raise InvalidArgumentError(
            f"expected rename to name tables of the profile {sorted(profile.tables)}, found "
            f"{unknown}"
        )
    targets = {name: rename.get(name, name) for name in profile.tables}
    if len(set(targets.values())) < len(targets):
        raise InvalidArgumentError(f"expected each table to get one profile, found {targets}")
    found = []
    for name, target in targets.items():
        table, given = _found(engine, target, name), profile.tables[name]
        bound = given.key_bound
        if bound > table.rows:
            raise InvalidArgumentError(
                f"table {target!r} has {table.rows} rows, the profile of {name!r} is of a table of "
                f"{bound} or more: it is another table's, or was counted after it had grown"
            )
        found.append((table, replace(given, name=target, rows=table.rows)))
    return found


def _found(engine: Engine, target: str, name: str) -> TableState:
    try:
        return engine.find(target)
    except TableNotFoundError as exc:
        raise TableNotFoundError(
            f"the profile has table {name!r}: {exc}; rename={{{name!r}: ...}} names the table that "
            "it is for"
        ) from exc


def _rank(engine: Engine, table: TableState, given: TableProfile, levels: RowLevels) -> None:
    engine.frequencies.rank(table, len(given.keys), levels)
    pool = table.pool
    if pool.policy_name == "lfu":
        keys = pool.slot_keys
        slots = np.flatnonzero((keys != EMPTY_KEY) & (keys >> KEY_BITS == table.table_id))
        counts = _counts_of(given, keys[slots] & KEY_MASK)
        pool.policy.seed(slots, lfu_counts(counts, given.accesses, pool))


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
        "unreadable": list(engine.frequencies.kept.unreadable),
    }

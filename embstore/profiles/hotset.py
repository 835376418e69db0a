"""Hot sets: the rows that are worth pinning or copying, chosen over all tables under a budget.

A row is **hot** if its profiled count reaches a threshold. The threshold is the same for all
tables, so that no cold row of any table was used more often than a hot row. It is the lowest
threshold whose hot rows fit into the budget. Rows of equal count are either all hot or all cold. If
only some of them were hot, for example those with the lowest keys, rows would be hot by the
accident of their keys, and other rows would be hot after the next sample. Therefore a budget is
rarely used to the last byte, and if all counts of a profile are equal, possibly no row is hot.

**Small tables**, of at most 1/256 of the budget, are hot as a whole. The reason is that a sample is
hot only if all of its ids are hot: one cold id of a table of three rows would make the sample cold.
Small tables together take at most half of the budget, the smallest tables first. The threshold
applies to the remaining small tables, as to large tables.

FAE (Adnan et al., VLDB 2022) tries several thresholds, and estimates from random chunks of the
tables how many rows are above each threshold. Here a profile contains the counts, so the rows above
every threshold are known. The profile can be that of a sample; the threshold is then a number of
sampled accesses. FAE's code stores the numbers of hot rows as float32, which cannot distinguish
16,777,217 from its predecessor; here these numbers are int64 from the profile to the file.

Only NumPy is imported, because clients import this module.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arrays import DIM_MAX, Keys, as_keys
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.optimizers import OPTIMIZERS
from embstore.profiles.archive import Archive, Members, Saved, gaps_to_keys, keys_to_gaps
from embstore.profiles.checks import ascends, check, check_int, check_keys
from embstore.profiles.profile import Profile, TableProfile, exact_sum
from embstore.values import same

ROW_BYTES_MAX = VALUE_BYTES * (
    DIM_MAX + max(kind.state_dim(DIM_MAX) for kind in OPTIMIZERS.values())
)
"""Bytes of the widest row that a table can have."""
SMALL_TABLE_SHARE = 256
"""A table is hot as a whole if it takes at most the budget divided by this number."""
_SMALL_TABLES_SHARE = 2


@dataclass(frozen=True, eq=False)
class HotSet(Saved):
    """The hot rows of some tables.

    Raises
    ------
    InvalidArgumentError : on construction, if a value breaks the documentation of its field.
    """

    archive = Archive("an embstore hot set", 1)
    tables: dict[str, Keys]
    """Hot keys by table name: (k,) int64, ascending and unique, without -1; k may be 0. Sparse keys
    of 2**63 or more are negative, and therefore come first."""
    version: int = 1
    """The version of the set, >= 1. A later set of the same store has a larger version."""
    threshold: int = 0
    """The lowest number of accesses in the profile that makes a row hot; 0: the rows were chosen in
    another way."""
    bytes: int = 0
    """Bytes that the rows take; 0: unknown."""

    def __post_init__(self) -> None:
        is_dict, found = isinstance(self.tables, dict), type(self.tables).__name__
        check(is_dict, "tables to be a dict of keys by name", found, "hot set: ")
        for name, keys in self.tables.items():
            _check_keys(name, keys)
        check_version(self.version)
        check_int(self.threshold, "hot set: threshold")
        check_int(self.bytes, "hot set: bytes")

    @classmethod
    def of(cls, given: "HotSet | Mapping[str, ArrayLike]") -> "HotSet":
        """Return a hot set unchanged, or make a hot set of version 1 from a mapping of keys by
        table.

        Parameters
        ----------
        given : a hot set; or a mapping from each table's name to its hot keys, (k,) integers, for
            example a list, in any order, repeats allowed

        Raises
        ------
        InvalidArgumentError : `given` is neither a hot set nor such a mapping, or a key is -1,
            which is the same as 2**64 - 1.
        """
        if isinstance(given, HotSet):
            return given
        is_mapping, found = isinstance(given, Mapping), type(given).__name__
        check(is_mapping, "a HotSet, or keys by table", found)
        return cls({name: np.unique(as_keys(keys, name)) for name, keys in given.items()})

    def check_replaces(self, pinned: "HotSet") -> None:
        """Raise InvalidArgumentError unless this set is newer than, or equal to, the pinned set."""
        is_same = self.version == pinned.version and same(self.tables, pinned.tables)
        if self.version <= pinned.version and not is_same:
            raise InvalidArgumentError(
                f"expected a hot set of a version above {pinned.version}, which is pinned, found "
                f"{self.version}; unpin it first, or give a larger version"
            )

    @property
    def row_count(self) -> int:
        """The number of rows of all tables."""
        return sum(len(keys) for keys in self.tables.values())

    def _pack(self) -> tuple[dict[str, Any], dict[str, Keys]]:
        facts = {name: getattr(self, name) for name in ("version", "threshold", "bytes")}
        gaps = {f"keys_{i}": keys_to_gaps(keys) for i, keys in enumerate(self.tables.values())}
        return {"set": facts, "tables": list(self.tables)}, gaps

    @classmethod
    def _unpack(cls, header: dict[str, Any], arrays: Members) -> "HotSet":
        names = header.pop("tables")
        check(len(set(names)) == len(names), "each table once", names)
        places = {name: f"keys_{place}" for place, name in enumerate(names)}
        arrays.check_names(places.values())
        tables = {name: gaps_to_keys(arrays.take(place)) for name, place in places.items()}
        return cls(tables, **header.pop("set"))


def choose_hot_set(
    profile: Profile, budget_bytes: int, row_bytes: Mapping[str, int], version: int = 1
) -> HotSet:
    """Return the largest hot set that fits the budget: all rows with at least `threshold` accesses.

    Parameters
    ----------
    row_bytes : bytes of a hot row, weights and state together, by table name, for each table of the
        profile

    Raises
    ------
    InvalidArgumentError : the budget is smaller than every row, or a table has no row bytes, or the
        profile has keys beyond the rows of a table.

    Notes
    -----
    Small tables (described at the top of this module) are recognized only if the profile contains
    their number of rows. The counts of a sketch are too low by up to the table's `error`. Therefore
    the accesses of a cold row can exceed those of a hot row by up to that error.
    """
    check_int(budget_bytes, "the budget in bytes", low=1)
    check_version(version)
    costs = _checked_costs(profile, budget_bytes, row_bytes)
    small = _small_tables(profile, budget_bytes, costs)
    left = budget_bytes - sum(profile.tables[name].rows * costs[name] for name in small)
    large = [table for name, table in profile.tables.items() if name not in small]
    threshold = _lowest_threshold(large, left, costs)
    tables = {
        name: np.arange(table.rows) if name in small else table.keys[table.counts >= threshold]
        for name, table in profile.tables.items()
    }
    taken = sum(len(keys) * costs[name] for name, keys in tables.items())
    return HotSet(tables, version, threshold, taken)


def _checked_costs(
    profile: Profile, budget_bytes: int, row_bytes: Mapping[str, int]
) -> dict[str, int]:
    missing = sorted(profile.tables.keys() - row_bytes.keys())
    check(not missing, "row_bytes of every table of the profile", f"none of {missing}")
    costs = {name: row_bytes[name] for name in profile.tables}
    for name, cost in costs.items():
        check_int(cost, f"table {name!r}: row_bytes", low=1, high=ROW_BYTES_MAX)
        rows, bound = profile.tables[name].rows, profile.tables[name].key_bound
        is_below, found = not rows or bound <= rows, f"{bound - 1} in the profile"
        check(is_below, f"keys below its {rows} rows", found, f"table {name!r}: ")
    least = min(costs.values(), default=0)
    expected = f"a budget of at least one row ({least} bytes)"
    check(budget_bytes >= least, expected, f"{budget_bytes} bytes")
    return costs


def _small_tables(profile: Profile, budget_bytes: int, costs: Mapping[str, int]) -> set[str]:
    sizes = sorted((t.rows * costs[name], name) for name, t in profile.tables.items() if t.rows)
    small: set[str] = set()
    left = budget_bytes // _SMALL_TABLES_SHARE
    for size, name in sizes:
        if size > min(budget_bytes // SMALL_TABLE_SHARE, left):
            break
        left -= size
        small.add(name)
    return small


def _lowest_threshold(
    tables: Iterable[TableProfile], budget_bytes: int, costs: Mapping[str, int]
) -> int:
    """Return the lowest threshold, at least 1, whose hot rows fit into the budget."""
    counts, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for table in tables:
        values, rows = np.unique(table.counts, return_counts=True)
        counts.append(values)
        sizes.append(rows.astype(np.int64) * costs[table.name])
    values, places = np.unique(np.concatenate(counts), return_inverse=True)
    bytes_at = np.zeros(len(values), np.int64)
    np.add.at(bytes_at, places, np.concatenate(sizes))
    taken = np.cumsum(bytes_at[::-1])[::-1]  # bytes of the rows with at least this count
    too_low = values[taken > budget_bytes]
    return int(too_low[-1]) + 1 if len(too_low) else 1


@dataclass(frozen=True)
class HotCoverage:
    """The shares of a profile's accesses and samples that a hot set would have served."""

    accesses: float
    """The share of accesses to hot rows."""
    samples: float
    """The share of samples whose ids are all hot."""
    samples_counted: bool
    """Whether `samples` was counted in the whole samples that the profile contains. Otherwise
    `samples` is the product of the tables' shares of accesses, as if each sample had one id per
    table and these ids were independent. Usually ids are not independent, and more samples are
    hot."""


def hot_coverage(hot_set: HotSet, profile: Profile) -> HotCoverage:
    """Return the shares of a profile's accesses and samples that a hot set covers.

    Raises
    ------
    InvalidArgumentError : the profile lacks a table of the hot set.
    """
    unknown = sorted(hot_set.tables.keys() - profile.tables.keys())
    check(not unknown, "a profile with the tables of the hot set", f"none of {unknown}")
    hits = dict.fromkeys(profile.tables, 0)
    for name, hot in hot_set.tables.items():
        table = profile.tables[name]
        hits[name] = exact_sum(table.counts[contained(hot, table.keys)])
    accesses = {name: table.accesses for name, table in profile.tables.items()}
    share = sum(hits.values()) / max(sum(accesses.values()), 1)
    samples = profile.samples
    if samples is not None and len(samples):
        is_hot = np.ones(len(samples), np.bool_)
        for name, ids, owners in samples.columns():
            hot = hot_set.tables.get(name, np.empty(0, np.int64))
            is_hot[owners[~contained(hot, ids)]] = False
        return HotCoverage(share, float(is_hot.mean()), True)
    of_tables = [hits[name] / count for name, count in accesses.items() if count]
    return HotCoverage(share, float(np.prod(of_tables)) if of_tables else 0.0, False)


def contained(keys: Keys, wanted: Keys) -> NDArray[np.bool_]:
    """Return whether each of `wanted`, (n,) in any order, is among `keys`, which are ascending and
    unique; (n,) bool."""
    if not len(keys):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: NDArray[np.bool_] = keys[places] == wanted
    return found


def check_version(version: object) -> None:
    """Raise InvalidArgumentError unless `version` is an integer of at least 1."""
    check_int(version, "hot set: version", low=1)


def _check_keys(name: object, keys: object) -> None:
    check(isinstance(name, str) and name, "a table's name", repr(name), "hot set: ")
    where = f"hot set, table {name!r}: "
    if not isinstance(keys, np.ndarray) or keys.dtype != np.int64 or keys.ndim != 1:
        found = f"{getattr(keys, 'dtype', type(keys).__name__)} {getattr(keys, 'shape', '')}"
        check(False, "keys of shape (k,), int64", found, where)
    assert isinstance(keys, np.ndarray)
    check(ascends(keys), "keys in ascending order, each once", "others", where)
    check_keys(keys, f"{where}keys")

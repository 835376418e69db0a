"""Profiles: the number of accesses to each row of each table, as a value and as a file.

An **access** is one occurrence of a key in a lookup. A **profile** contains, for every table, the
keys that were seen and their counts of accesses; keys that were not seen are omitted. A profile can
have two more parts, for questions that counts alone cannot answer. **Samples** are whole training
samples, drawn uniformly; they show how many samples have only hot rows. A **trace** is a stretch of
calls in their order; it shows how long it takes until a key occurs again.

    rate     the share of all samples or calls that was counted; counts are not scaled up
    error    a bound for each table: its counts are too low by at most this number, and a key that
             is omitted has at most this number of accesses; 0 unless a sketch counted (counter.py)
    ranked   by descending count, equal counts by ascending key, so that a **rank** means the same
             row after every restart

**Spatial sampling.** A trace of all keys of a server would grow as long as the server runs.
Therefore a trace contains a random part of the keys, with every access to these keys (SHARDS:
Waldspurger et al., FAST 2015): a key of a table is sampled if, and only if, its hash is below
rate * 2**64. Half the rate selects half of these keys, so a recorder can halve the rate at any
time. The hash function is MurmurHash3's fmix64, as in the kernels. It is applied to the product of
key + 1 and the table's seed, modulo 2**64. The seed is odd, so that the hash is one to one, and 0
is the hash of -1, which is no key.

**Keys** are int64 in the order of int64: in a table of sparse keys, keys of 2**63 or more are
negative, and therefore come first.

**The file** is an archive (archive.py); each key is stored as the difference to the key before. The
arrays of a file pass the same checks as the arrays of a caller. A profile that is read back is
equal to the profile that was written; if it is written again, the file has the same bytes.

Only NumPy is imported, because clients import this module.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arrays import ROWS_MAX, Keys
from embstore.profiles.archive import Archive, Members, Saved, gaps_to_keys, keys_to_gaps
from embstore.profiles.checks import (
    INT64_MAX,
    ascends,
    check,
    check_array,
    check_below,
    check_int,
    check_keys,
    check_lengths,
    check_name,
    check_names,
    check_rate,
)
from embstore.values import Value

Arrays = dict[str, NDArray[Any]]
Counts = NDArray[np.int64]

_FITTED_RANKS = 10_000
"""Number of ranks to which the skew is fitted: the first four decades, which matter most for a
cache."""
_FITTED_COUNT = 10
"""Least count that is a usable estimate of the true share of the key's rank."""
_MIX_SHIFT = np.uint64(33)
_MIX_MULTIPLIERS = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def table_seed(name: str) -> int:
    """Return the odd factor by which a table's keys are multiplied before they are hashed. It is
    the hash of the table's name, with the lowest bit set."""
    name_hash = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(name_hash, "little") | 1


def spatial_hash(name: str, keys: Keys) -> NDArray[np.uint64]:
    """Return the hash, (n,), of each key of a table. Within a table no two keys have the same hash,
    and no hash is 0."""
    h = (keys.astype(np.uint64) + np.uint64(1)) * np.uint64(table_seed(name))
    for multiplier in _MIX_MULTIPLIERS:
        h ^= h >> _MIX_SHIFT
        h *= multiplier
    return h ^ (h >> _MIX_SHIFT)


def spatial_limit(rate: float) -> int:
    """Return the largest hash that a key in a sample of this rate can have; -1: the sample has no
    key."""
    return int(rate * 2.0**64) - 1


@dataclass(frozen=True, eq=False)
class TableProfile(Value):
    """The accesses of one table.

    Raises
    ------
    InvalidArgumentError : on construction, if a value breaks the documentation of its field.
    """

    name: str
    rows: int
    """Number of rows of the table when accesses were counted; 0: unknown, as for accesses read from
    files, or for sparse keys."""
    keys: Keys
    """Keys of the rows that were accessed, (k,), ascending and unique, without -1."""
    counts: Counts
    """Number of accesses to each key, (k,), >= 1."""
    accesses: int
    """Number of all counted accesses; more than the sum of `counts` if a sketch dropped some of
    them."""
    error: int = 0
    """Bound of the error: counts are too low by at most this number, and a key that is omitted has
    at most this number of accesses."""

    def __post_init__(self) -> None:
        where = f"table {self.name!r}"
        check_name(self.name, "a table")
        check_int(self.rows, f"{where}: rows", high=ROWS_MAX)
        check_keys(self.keys, f"{where}: keys")
        check_array(self.counts, f"{where}: counts", least=1)
        check_lengths(where, keys=self.keys, counts=self.counts)
        check(ascends(self.keys), f"{where}: keys ascending and unique", "others")
        check_int(self.error, f"{where}: error")
        check_int(self.accesses, f"{where}: accesses", low=exact_sum(self.counts))

    @property
    def key_bound(self) -> int:
        """The largest key, unsigned, that the table can have, plus one."""
        return max(self.rows, self.seen_bound)

    @property
    def seen_bound(self) -> int:
        """The largest key, unsigned, that was seen, plus one; 0 if no key was seen."""
        return int(self.keys.view(np.uint64).max()) + 1 if len(self.keys) else 0

    def ranked(self) -> tuple[Keys, Counts]:
        """Return keys and counts by descending count; keys of equal count are in ascending
        order."""
        order = np.argsort(-self.counts, kind="stable")
        return self.keys[order], self.counts[order]

    def top_share(self, count: int) -> float:
        """Return the share of all accesses that are accesses to the `count` most accessed keys."""
        count = min(max(count, 0), len(self.counts))
        if count == 0:
            return 0.0
        top = np.partition(self.counts, len(self.counts) - count)[-count:]
        return exact_sum(top) / self.accesses

    def coverage(self, shares: ArrayLike) -> NDArray[np.float64]:
        """Return the share of accesses to the most accessed rows, for each given share of the rows.

        Parameters
        ----------
        shares : (s,) shares of the number of the table's rows, or, if that is unknown, of the
            number of keys seen
        """
        rows = self.rows or len(self.keys)
        wanted = np.rint(np.asarray(shares, np.float64) * rows)
        sums = np.zeros(len(self.counts) + 1)
        np.cumsum(np.sort(self.counts)[::-1], out=sums[1:], dtype=np.float64)
        taken: NDArray[np.float64] = sums[np.clip(wanted, 0, len(self.counts)).astype(np.int64)]
        return taken / max(self.accesses, 1)

    def zipf_exponent(self) -> float:
        """Return the skew s, if counts fall as rank**-s; 0.0 if too few keys have usable counts.

        The skew is the least-squares fit of log count to log rank. The ranks are evenly spaced in
        the logarithm, so that each decade has the same weight. Ranks above 10,000 and counts below
        10 are left out.
        """
        counts = np.sort(self.counts)[::-1][:_FITTED_RANKS]
        last = np.count_nonzero(counts >= _FITTED_COUNT)
        if last < 2:
            return 0.0
        ranks = np.unique(np.rint(np.geomspace(1, last, 1 + 16 * len(str(last)))).astype(np.int64))
        slope, _ = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
        return max(0.0, -float(slope))


@dataclass(frozen=True, eq=False)
class Samples(Value):
    """Whole training samples, drawn uniformly from all samples.

    A sample has a list of ids in each column. Lists can have any length; lists of different samples
    need not have the same length.
    """

    tables: tuple[str, ...]
    """The table of each column. There is at least one column, and a table can have several
    columns."""
    lengths: NDArray[np.int64]
    """Length of each sample's list in each column, (n, columns), >= 0."""
    ids: NDArray[np.int64]
    """The ids of all lists, (sum of `lengths`,), without -1. They are ordered by column, and within
    a column by sample."""

    def __post_init__(self) -> None:
        check_names(self.tables, "samples: tables", "a table of samples")
        check(self.tables, "samples: a column", "none")
        check_array(self.lengths, "samples: lengths", least=0, ndim=2)
        columns = self.lengths.shape[1]
        check(columns == len(self.tables), f"samples: {len(self.tables)} columns", columns)
        check_keys(self.ids, "samples: ids")
        total = exact_sum(self.lengths)
        check(total == len(self.ids), f"samples: {total} ids", len(self.ids))

    def __len__(self) -> int:
        return len(self.lengths)

    def columns(self) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield, for each column, the table, the ids, and the index of each id's sample."""
        places = np.arange(len(self))
        start = 0
        for table, lengths in zip(self.tables, self.lengths.T, strict=True):
            owners = np.repeat(places, lengths)
            yield table, self.ids[start : start + len(owners)], owners
            start += len(owners)


@dataclass(frozen=True, eq=False)
class Trace(Value):
    """The accesses of a stretch of calls, for a spatial sample of the keys.

    One event is a key in a call. If a call has a key several times, the key still has one event,
    whose count is the number of accesses.
    """

    rate: float
    """The share of keys that the sample contains."""
    tables: tuple[str, ...]
    calls: int
    """Number of calls in the recorded stretch, including calls without an event."""
    call: NDArray[np.int32]
    """Index of each event's call in the stretch, (e,), from 0, never decreasing."""
    table: NDArray[np.int16]
    """Index of each event's table in `tables`, (e,)."""
    keys: Keys
    """Key of each event, (e,), without -1, unique within a call and table."""
    counts: Counts
    """Number of accesses to the key in that call, (e,), >= 1."""
    unique_total: int
    """Sum of the numbers of unique keys of all calls in the stretch, over all keys, sampled or
    not."""
    access_total: int
    """Number of accesses in the stretch to all keys, sampled or not."""

    def __post_init__(self) -> None:
        check_rate(self.rate, "trace: rate")
        check_names(self.tables, "trace: tables", "a table of the trace")
        check(len(set(self.tables)) == len(self.tables), "trace: each table once", self.tables)
        check_int(self.calls, "trace: calls", high=(1 << 31) - 1)
        self._check_events()
        check_int(self.unique_total, "trace: unique_total", low=len(self.keys))
        low = max(exact_sum(self.counts), self.unique_total)
        check_int(self.access_total, "trace: access_total", low=low)

    def _check_events(self) -> None:
        check_keys(self.keys, "trace: keys")
        for name in ("call", "table", "counts"):
            least, dtype = int(name == "counts"), _TRACE_EVENTS[name]
            check_array(getattr(self, name), f"trace: {name}", least=least, dtype=dtype)
        check_lengths("trace", keys=self.keys, call=self.call, table=self.table, counts=self.counts)
        check_below(self.call, self.calls, "trace: call")
        check_below(self.table, len(self.tables), "trace: table")
        check((self.call[1:] >= self.call[:-1]).all(), "trace: calls in their order", "others")
        check(self._is_unique(), "trace: each key of a table once in a call", "one twice")

    def _is_unique(self) -> bool:
        order = np.lexsort((self.keys, self.table, self.call))
        same = np.ones(max(len(order) - 1, 0), np.bool_)
        for column in (self.call[order], self.table[order], self.keys[order]):
            same &= column[1:] == column[:-1]
        return not same.any()


@dataclass(frozen=True, eq=False)
class Profile(Saved):
    """The accesses of several tables."""

    archive = Archive("an embstore profile", 2)
    tables: dict[str, TableProfile]
    """The profiles of tables, by name."""
    rate: float = 1.0
    """The share of samples or calls that was counted."""
    seed: int = 0
    """Seed of the random choice of the counted samples."""
    samples: Samples | None = None
    trace: Trace | None = None
    store_id: str = ""
    """Id of the store that counted the accesses; empty if no store counted them."""

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            check(name == table.name, f"table {name!r} under its name", table.name)
        check_rate(self.rate, "rate")
        check_int(self.seed, "seed", low=-INT64_MAX)
        check(isinstance(self.store_id, str), "store_id to be a string", self.store_id)

    def _pack(self) -> tuple[dict[str, Any], Arrays]:
        header: dict[str, Any] = {name: getattr(self, name) for name in _PROFILE_FACTS}
        header |= {"tables": [], "samples": None, "trace": None}
        arrays: Arrays = {}
        for place, table in enumerate(self.tables.values()):
            header["tables"].append({name: getattr(table, name) for name in _TABLE_FACTS})
            arrays[f"keys_{place}"] = keys_to_gaps(table.keys)
            arrays[f"counts_{place}"] = table.counts
        if self.samples is not None:
            header["samples"] = {"tables": self.samples.tables}
            arrays |= {f"samples_{name}": getattr(self.samples, name) for name in _SAMPLES_ARRAYS}
        if self.trace is not None:
            header["trace"] = {name: getattr(self.trace, name) for name in _TRACE_FACTS}
            arrays |= {f"trace_{name}": getattr(self.trace, name) for name in _TRACE_EVENTS}
        return header, arrays

    @classmethod
    def _unpack(cls, header: dict[str, Any], arrays: Members) -> "Profile":
        facts, samples, trace = header.pop("tables"), header.pop("samples"), header.pop("trace")
        arrays.check_names(_array_names(len(facts), samples, trace))
        tables: dict[str, TableProfile] = {}
        for place, fact in enumerate(facts):
            keys = gaps_to_keys(arrays.take(f"keys_{place}"))
            table = TableProfile(keys=keys, counts=arrays.take(f"counts_{place}"), **fact)
            check(table.name not in tables, "each table once", table.name)
            tables[table.name] = table
        if samples is not None:
            values = {name: arrays.take(f"samples_{name}") for name in _SAMPLES_ARRAYS}
            samples = Samples(tables=tuple(samples.pop("tables")), **values, **samples)
        if trace is not None:
            trace = _unpack_trace(trace, arrays)
        facts = {name: header.pop(name) for name in _PROFILE_FACTS}
        return cls(tables, samples=samples, trace=trace, **facts)


def exact_sum(counts: Counts) -> int:
    """Return the exact sum of counts, which are >= 0. The sum of the counts in a damaged file can
    exceed int64."""
    high = int((counts >> 32).sum())  # one half at a time: a half needs as much memory as `counts`
    return (high << 32) + int((counts & 0xFFFFFFFF).sum())


_PROFILE_FACTS = "rate", "seed", "store_id"
_TABLE_FACTS = "name", "rows", "accesses", "error"
_SAMPLES_ARRAYS = "lengths", "ids"
_TRACE_FACTS = "rate", "tables", "calls", "unique_total", "access_total"
_TRACE_EVENTS: dict[str, Any] = {
    "call": np.int32,
    "table": np.int16,
    "keys": np.int64,
    "counts": np.int64,
}


def _array_names(table_count: int, samples: object, trace: object) -> Iterator[str]:
    for place in range(table_count):
        yield f"keys_{place}"
        yield f"counts_{place}"
    if samples is not None:
        yield from (f"samples_{name}" for name in _SAMPLES_ARRAYS)
    if trace is not None:
        yield from (f"trace_{name}" for name in _TRACE_EVENTS)


def _unpack_trace(facts: dict[str, Any], arrays: Members) -> Trace:
    events: dict[str, Any] = {}
    for name, dtype in _TRACE_EVENTS.items():
        values = arrays.take(f"trace_{name}")
        if dtype != np.int64:
            check_below(values, np.iinfo(dtype).max, f"trace: {name}")
        events[name] = values.astype(dtype)
    return Trace(tables=tuple(facts.pop("tables")), **facts, **events)

"""Counting of accesses: the rows that lookups read, and the order of these lookups.

A store counts the accesses of a share `rate` of its lookups; 1 means all lookups, and 0 none. A
hash of a lookup's number decides whether the lookup is counted. Each table has a counter
(counter.py), which is exact up to `KEYS_MAX` keys and a sketch above. One recorder for all tables
records the order of calls for a sample of keys (recorder.py). An access is one occurrence of a key
in a lookup, unless the caller gives the key a larger count; a step of a session contains each key
once. Lookups with admit=False are not counted.

Counters belong to table ids, and recordings to table names. The counter and the recording of a
table are deleted when it is dropped or when a restore removes it; a later table of the same name
starts from zero. If a table has fewer rows after a restore, the counts of the removed rows and the
table's recording are deleted. After a restart, the counts are read from the disk (kept.py), and
scaled if the rate has changed; the recording is lost.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from embstore.arrays import Keys
from embstore.hotness.counter import CountedKeys, KeyCounter
from embstore.hotness.recorder import Recorder
from embstore.profiles.checks import INT64_MAX
from embstore.profiles.profile import Counts, TableProfile, exact_sum

KEYS_MAX = 1 << 20
"""Maximum number of keys of a table that are counted exactly."""
_GOLDEN = 0x9E3779B97F4A7C15
_WORDS = 1 << 64


@dataclass(frozen=True)
class TableAccess:
    """The accesses of one call to one table."""

    table_id: int
    name: str
    keys: Keys  # (n,) in any order, repeats allowed
    counts: Counts | None = None  # (n,) number of accesses that each key stands for; None: 1


class Accesses:
    """The access counts of one store. One thread at a time."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.calls = 0
        self.counted_calls = 0
        self.changed: set[int] = set()
        """Ids of the tables whose counts differ from their counts on the disk."""
        self.counters: dict[int, KeyCounter] = {}
        """The counters of tables that have counts, by table id."""
        self.recorder = Recorder()

    def begin_call(self) -> bool:
        """Give the next lookup its number, and return whether the lookup is to be counted."""
        if not self.rate:
            return False
        self.calls += 1
        is_counted = self.calls * _GOLDEN % _WORDS < self.rate * _WORDS
        self.counted_calls += is_counted
        return is_counted

    def note(self, call: Iterable[TableAccess]) -> None:
        """Count the accesses of one lookup, given for each of its tables."""
        call = list(call)
        for of_table in call:
            if of_table.table_id not in self.counters:
                self.counters[of_table.table_id] = KeyCounter(KEYS_MAX)
            self.counters[of_table.table_id].add(of_table.keys, of_table.counts)
            self.changed.add(of_table.table_id)
        self.recorder.record([(t.name, t.keys, t.counts) for t in call])

    def resume(self, table_id: int, profile: TableProfile, rate: float, rows: int) -> None:
        """Continue counts that were made at `rate` before the store was opened. The table has
        `rows` rows at present."""
        if profile.key_bound > rows:
            profile = within(profile, rows)
            self.changed.add(table_id)
        profile = at_rate(profile, rate, self.rate)
        self.counters[table_id] = KeyCounter.resumed(profile, KEYS_MAX)

    def forget(self, table_id: int, name: str) -> None:
        """Delete the counts and the recording of a table that was removed."""
        self.counters.pop(table_id, None)
        self.changed.discard(table_id)
        self.recorder.forget(name)

    def cut(self, table_id: int, name: str, rows: int) -> None:
        """Delete the recording of a table, and its counts except the counts of its first `rows`
        rows."""
        counter = self.counters.get(table_id)
        if counter is not None:
            profile = within(counter.profile(name, 0), rows)
            self.counters[table_id] = KeyCounter.resumed(profile, KEYS_MAX)
            self.changed.add(table_id)
        self.recorder.forget(name)

    def clear(self) -> None:
        """Delete all counts and recordings, and start from zero."""
        self.calls = self.counted_calls = 0
        self.changed.clear()
        self.counters.clear()
        self.recorder.clear()

    def copied(self, table_id: int) -> CountedKeys | None:
        """Return a copy of a table's counts; None if the table has no counts."""
        counter = self.counters.get(table_id)
        return None if counter is None else counter.copied()

    def table_profile(self, table_id: int, name: str, rows: int) -> TableProfile:
        """Return the profile of a table's counts."""
        counter = self.counters.get(table_id)
        return no_counts(name, rows) if counter is None else counter.profile(name, rows)

    @property
    def counted_accesses(self) -> int:
        """Number of counted accesses of all tables."""
        return sum(counter.accesses for counter in self.counters.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that the counts and the recorded calls take."""
        counted = sum(counter.memory_bytes for counter in self.counters.values())
        return self.recorder.memory_bytes + counted


def no_counts(name: str, rows: int) -> TableProfile:
    """Return an empty profile for a table without counts."""
    none = np.empty(0, np.int64)
    return TableProfile(name, rows, none, none, 0)


def at_rate(table: TableProfile, counted: float, rate: float) -> TableProfile:
    """Return a profile with scaled counts. The given counts cover the share `counted` of all
    lookups; they are scaled to the share `rate`."""
    if counted == rate:
        return table
    factor = rate / counted
    highest = (1 << 62) // max(len(table.counts), 1)  # so that the counts' sum has 63 bits
    counts = np.clip(np.rint(table.counts * factor), 1, highest).astype(np.int64)
    accesses = max(exact_sum(counts), min(round(table.accesses * factor), INT64_MAX))
    error = min(math.ceil(table.error * factor), INT64_MAX)
    return replace(table, counts=counts, accesses=accesses, error=error)


def within(table: TableProfile, rows: int) -> TableProfile:
    """Return the profile without rows beyond the first `rows`, for a table that has only `rows`
    rows."""
    if table.key_bound <= rows:
        return table
    is_in = table.keys.view(np.uint64) < np.uint64(rows)
    accesses = table.accesses - exact_sum(table.counts[~is_in])
    return replace(
        table, rows=rows, keys=table.keys[is_in], counts=table.counts[is_in], accesses=accesses
    )

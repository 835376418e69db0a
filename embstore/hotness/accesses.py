"""Accesses counted as they come: the rows that lookups ask for, and their order.

A store that counts does so for a share `rate` of its lookups, chosen by a hash of their number: 1
is all of them, 0 none. Each table has a counter (counter.py), exact below `KEYS_MAX` keys and a
sketch above; one recorder for all tables keeps the order of calls for a sample of keys
(recorder.py). An access is an occurrence of a key in a lookup; the caller may give it a larger
count; a step of a session has each key once. Lookups with admit=False are not counted.

Counters are by table id, and the recording by name: both are deleted with a table that is dropped,
or that a restore does not have, and a later table of its name starts anew. Where a restore leaves a
table fewer rows, the counts of the others are deleted, and the table's recording. Counts outlive a
restart (kept.py), scaled where the rate has changed; the recording does not.
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
"""Keys of a table that are counted exactly, at most."""
_GOLDEN = 0x9E3779B97F4A7C15
_WORDS = 1 << 64


@dataclass(frozen=True)
class TableAccess:
    """The accesses of one call to one table."""

    table_id: int
    name: str
    keys: Keys  # (n,) in any order, repeated or not
    counts: Counts | None = None  # (n,) accesses that each stands for; None: 1


class Accesses:
    """Counts of one store. One thread at a time."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.calls = 0
        self.counted_calls = 0
        self.changed: set[int] = set()
        """Tables whose counts are others than those that are kept, by id."""
        self.counters: dict[int, KeyCounter] = {}
        """The counters of tables that have counts, by id."""
        self.recorder = Recorder()

    def begin_call(self) -> bool:
        """Say whether the next lookup is to be counted."""
        if not self.rate:
            return False
        self.calls += 1
        is_counted = self.calls * _GOLDEN % _WORDS < self.rate * _WORDS
        self.counted_calls += is_counted
        return is_counted

    def note(self, call: Iterable[TableAccess]) -> None:
        """Count a lookup."""
        call = list(call)
        for of_table in call:
            if of_table.table_id not in self.counters:
                self.counters[of_table.table_id] = KeyCounter(KEYS_MAX)
            self.counters[of_table.table_id].add(of_table.keys, of_table.counts)
            self.changed.add(of_table.table_id)
        self.recorder.record([(t.name, t.keys, t.counts) for t in call])

    def resume(self, table_id: int, profile: TableProfile, rate: float, rows: int) -> None:
        """Continue the counts made at `rate` before the store was opened, of a table that has
        `rows` rows now."""
        if profile.key_bound > rows:
            profile = within(profile, rows)
            self.changed.add(table_id)
        profile = at_rate(profile, rate, self.rate)
        self.counters[table_id] = KeyCounter.resumed(profile, KEYS_MAX)

    def forget(self, table_id: int, name: str) -> None:
        """Let the counts of a table that is gone go."""
        self.counters.pop(table_id, None)
        self.changed.discard(table_id)
        self.recorder.forget(name)

    def cut(self, table_id: int, name: str, rows: int) -> None:
        """Delete the counts of all but the first `rows` rows of a table, and its recording."""
        counter = self.counters.get(table_id)
        if counter is not None:
            profile = within(counter.profile(name, 0), rows)
            self.counters[table_id] = KeyCounter.resumed(profile, KEYS_MAX)
            self.changed.add(table_id)
        self.recorder.forget(name)

    def clear(self) -> None:
        """Count anew."""
        self.calls = self.counted_calls = 0
        self.changed.clear()
        self.counters.clear()
        self.recorder.clear()

    def copied(self, table_id: int) -> CountedKeys | None:
        """Return a copy of a table's counts; None: it has none."""
        counter = self.counters.get(table_id)
        return None if counter is None else counter.copied()

    def table_profile(self, table_id: int, name: str, rows: int) -> TableProfile:
        """Return the profile of a table's counts."""
        counter = self.counters.get(table_id)
        return no_counts(name, rows) if counter is None else counter.profile(name, rows)

    @property
    def counted_accesses(self) -> int:
        """Accesses counted, of all tables."""
        return sum(counter.accesses for counter in self.counters.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of counts and recorded calls."""
        counted = sum(counter.memory_bytes for counter in self.counters.values())
        return self.recorder.memory_bytes + counted


def no_counts(name: str, rows: int) -> TableProfile:
    """Return the profile of a table of which nothing is known."""
    none = np.empty(0, np.int64)
    return TableProfile(name, rows, none, none, 0)


def at_rate(table: TableProfile, counted: float, rate: float) -> TableProfile:
    """Return a profile as one that counted another share would have found it, about."""
    if counted == rate:
        return table
    factor = rate / counted
    highest = (1 << 62) // max(len(table.counts), 1)  # so that their sum has 63 bits
    counts = np.clip(np.rint(table.counts * factor), 1, highest).astype(np.int64)
    accesses = max(exact_sum(counts), min(round(table.accesses * factor), INT64_MAX))
    error = min(math.ceil(table.error * factor), INT64_MAX)
    return replace(table, counts=counts, accesses=accesses, error=error)


def within(table: TableProfile, rows: int) -> TableProfile:
    """Return the profile of the first `rows` rows, of a table that has no more."""
    if table.key_bound <= rows:
        return table
    is_in = table.keys.view(np.uint64) < np.uint64(rows)
    accesses = table.accesses - exact_sum(table.counts[~is_in])
    return replace(
        table, rows=rows, keys=table.keys[is_in], counts=table.counts[is_in], accesses=accesses
    )

"""Accesses counted as they come: which rows a running store is asked for, and in which order.

A store that counts does so for a share `rate` of its lookups, chosen by a hash of their number: 1
is all of them, 0 none. Each table has a counter (counter.py), exact below `KEYS_MAX` keys and a
sketch above; one recorder for all tables keeps the order of calls for a sample of keys
(recorder.py). An access is an occurrence of a key in a lookup, or as many as the caller says it
stands for; a step of a session has each key once. Lookups with admit=False are not counted.

Counters are by table id, so a table that is dropped takes its counts along, and one made later
under its name starts anew. Counts outlive a restart (kept.py), the recording does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from embstore.arrays import Keys
from embstore.frequency.counter import KeyCounter
from embstore.frequency.profile import Counts, Profile, TableProfile
from embstore.frequency.recorder import Recorder

KEYS_MAX = 1 << 20
"""Of a table, counted exactly."""
_GOLDEN = 0x9E3779B97F4A7C15
_WORDS = 1 << 64


@dataclass(frozen=True)
class TableAccess:
    """What one call asks of one table."""

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
        self._counters: dict[int, KeyCounter] = {}
        self._recorder = Recorder()

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
            self._counter(of_table.table_id).add(of_table.keys, of_table.counts)
        self._recorder.record([(t.name, t.keys, t.counts) for t in call])

    def _counter(self, table_id: int) -> KeyCounter:
        counter = self._counters.get(table_id)
        if counter is None:
            counter = self._counters[table_id] = KeyCounter(KEYS_MAX)
        return counter

    def resume(self, table_id: int, profile: TableProfile) -> None:
        """Go on from what was counted before the store was opened."""
        if table_id not in self._counters:
            self._counters[table_id] = KeyCounter.resumed(profile, KEYS_MAX)

    def forget(self, table_id: int) -> None:
        """Let a dropped table's counts go."""
        self._counters.pop(table_id, None)

    def clear(self) -> None:
        """Count anew."""
        self.calls = self.counted_calls = 0
        self._counters.clear()
        self._recorder.clear()

    def table_profile(self, table_id: int, name: str, rows: int) -> TableProfile:
        """Return what was counted of a table."""
        return self._counter(table_id).profile(name, rows)

    def profile(self, tables: Iterable[TableProfile], store_id: str) -> Profile:
        """Return the profile of some tables, with what was recorded."""
        return Profile(
            {table.name: table for table in tables},
            rate=self.rate or 1.0,
            trace=self._recorder.trace(),
            store_id=store_id,
        )

    def facts(self) -> dict[str, Any]:
        """Return how much was counted, and what that takes."""
        counters = self._counters.values()
        trace = self._recorder
        return {
            "count_rate": self.rate,
            "counted_calls": self.counted_calls,
            "counted_accesses": sum(counter.accesses for counter in counters),
            "memory_bytes": trace.memory_bytes + sum(c.memory_bytes for c in counters),
            "recorded": {"rate": trace.rate, "events": trace.events, "calls": trace.calls},
        }

    def table_facts(self, table_id: int) -> dict[str, Any]:
        """Return the same of one table."""
        counter = self._counters.get(table_id)
        if counter is None:
            return {"distinct": 0, "accesses": 0, "error": 0, "is_exact": True}
        return {
            "distinct": counter.distinct,
            "accesses": counter.accesses,
            "error": counter.error,
            "is_exact": counter.is_exact,
        }


def no_counts(name: str, rows: int) -> TableProfile:
    """Return the profile of a table of which nothing is known."""
    none = np.empty(0, np.int64)
    return TableProfile(name, rows, none, none, 0)

"""Recording of the accesses of calls, for a sample of the keys, in bounded memory.

A recorder keeps an **event** for each sampled key of each call, with the number of the key's
accesses in the call. The hash of a key alone decides whether the key is sampled (`profile.py`).
Therefore all events of a sampled key are recorded, and the distances between these events are
exact. When there are more than `events_max` events, the rate is halved, and all events of keys that
are no longer sampled are removed, beginning with the first call (SHARDS with a fixed size:
Waldspurger et al., FAST 2015). The remaining events are the same as if the recorder had begun with
that rate.

The numbers of unique keys and of accesses are totals over all keys, sampled or not: a sample may
have a hot key too many or too few, and SHARDS_adj corrects this by means of the expected number.
Therefore every key of a call is looked up once, in a hash table that is only as large as the call.
The totals are kept per table: `forget` removes the totals and events of a dropped table, and leaves
those of the other tables.

A recording ends by itself (`is_full`) after 2**31 - 1 calls, when its rate would fall below
_RATE_MIN, or when there are more tables than an int16 can number. Further calls are then not
recorded, and the recording stays valid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore.host.memory import reserve
from embstore.hotness.count_keys import keep_events, record_keys
from embstore.profiles.profile import Counts, Trace, spatial_limit, table_seed

Call = Sequence[tuple[str, Keys, Counts | None]]
_Parts = dict[str, tuple[Keys, Counts]]

_RATE_MIN = 2.0**-32
_CALLS_MAX = (1 << 31) - 1
_TABLES_MAX = 1 << 15
_EVENT_BYTES = 24
_NO_BYTES = np.empty(0, np.uint8)
_EACH_ONCE = np.empty(0, np.int64)


class _Events:
    """Events in the order of their calls: the first `count` entries of longer arrays."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.room = room = len(memory) // _EVENT_BYTES
        keys, counts, places = np.split(memory, [8 * room, 16 * room])
        self.keys, self.counts = keys.view(np.int64), counts.view(np.int64)
        self.calls, self.tables = places.view(np.int32).reshape(2, room)
        self.count = 0

    def keep(self, samples: NDArray[np.uint64]) -> None:
        """Drop the events of keys that are no longer in the sample."""
        self.count = keep_events(
            self.calls, self.tables, self.keys, self.counts, self.count, samples
        )

    def append(self, other: "_Events") -> None:
        """Append the events of `other`."""
        low, self.count = self.count, self.count + other.count
        for name in ("calls", "tables", "keys", "counts"):
            getattr(self, name)[low : self.count] = getattr(other, name)[: other.count]


@dataclass
class _Table:
    """The totals of one table."""

    place: int
    """The table's index in `_samples` and in the events."""
    unique_total: int = 0
    access_total: int = 0


class Recorder:
    """The recorded calls of a store. One thread at a time.

    Parameters
    ----------
    events_max : maximum number of events that are kept; an event takes 24 bytes
    rate : the share of the keys that is sampled at first

    Raises
    ------
    InvalidArgumentError : on construction, if the rate is not above 0 and at most 1.
    """

    def __init__(self, events_max: int = 1 << 20, rate: float = 1.0) -> None:
        assert events_max >= 1
        if not _RATE_MIN <= rate <= 1:
            raise InvalidArgumentError(f"expected rate from {_RATE_MIN} to 1, found {rate!r}")
        self._events_max = events_max
        self._first_rate = rate
        self.clear()

    def clear(self) -> None:
        """Delete the recording, and begin again with the initial rate."""
        self.rate = self._first_rate
        """The share of keys that is sampled at present."""
        self.calls = 0
        """Number of calls that were recorded since the last `clear`."""
        self.is_full = False
        """Whether the recording has ended, so that further calls are not recorded."""
        self._tables: dict[str, _Table] = {}
        self._free_places: list[int] = []  # places of tables that were forgotten
        self._samples = np.empty((0, 2), np.uint64)  # by place: seed and limit of a table
        self._events = _Events(reserve(_EVENT_BYTES * self._events_max))
        self._new = _Events(_NO_BYTES)  # of the call that is being recorded
        self._scratch = np.empty(0, np.uint64)

    @property
    def events(self) -> int:
        """Number of events that are kept."""
        return self._events.count

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory for `events_max` events, and for the scratch table of large calls."""
        return _EVENT_BYTES * (self._events_max + self._new.room) + self._scratch.nbytes

    def record(self, call: Call) -> None:
        """Record one call.

        Parameters
        ----------
        call : for each table: the name; the keys, (n,) int64, in any order, repeats allowed; and
            the number of accesses for which each key stands, (n,) int64, >= 1, or None: one access
            per key. If a table occurs twice, its keys are joined.
        """
        self.is_full |= self.calls == _CALLS_MAX or not self._enter_tables(call)
        if self.is_full:
            return
        parts = _joined(call)
        unique = self._collect(parts)
        self.is_full = not self._make_room()
        if not self.is_full:
            self._events.append(self._new)
            self.calls += 1
            for (name, (keys, counts)), found in zip(parts.items(), unique, strict=True):
                table = self._tables[name]
                table.unique_total += found
                table.access_total += int(counts.sum()) if len(counts) else len(keys)

    def forget(self, name: str) -> None:
        """Delete the recording of a table, as if it had occurred in no call."""
        table = self._tables.pop(name, None)
        if table is not None:
            self._samples[table.place, 1] = 0  # no hash is 0, so all keys of the table are dropped
            self._events.keep(self._samples)
            self._free_places.append(table.place)

    def trace(self) -> Trace:
        """Return a copy of the recording."""
        return Trace(**self.copied())

    def copied(self) -> dict[str, Any]:
        """Return the fields of `trace()`. The checks of `Trace` are not made: they take longer than
        the copy."""
        events, kept = self._events, slice(self._events.count)
        tables = self._tables.values()
        numbers = np.zeros(len(self._samples), np.int16)
        numbers[[table.place for table in tables]] = np.arange(len(tables))
        return {
            "rate": self.rate,
            "tables": tuple(self._tables),
            "calls": self.calls,
            "call": events.calls[kept].copy(),
            "table": numbers[events.tables[kept]],
            "keys": events.keys[kept].copy(),
            "counts": events.counts[kept].copy(),
            "unique_total": sum(table.unique_total for table in tables),
            "access_total": sum(table.access_total for table in tables),
        }

    def _enter_tables(self, call: Call) -> bool:
        """Give numbers to new tables. If there are too many tables, number no table and return
        False."""
        new = dict.fromkeys(name for name, _, _ in call if name not in self._tables)
        if len(self._tables) + len(new) > _TABLES_MAX:
            return False
        for name in new:
            if not self._free_places:
                self._free_places.append(len(self._samples))
                self._samples = np.concatenate([self._samples, np.empty((1, 2), np.uint64)])
            self._tables[name] = _Table(self._free_places.pop())
            self._samples[self._tables[name].place] = table_seed(name), spatial_limit(self.rate)
        return True

    def _collect(self, parts: _Parts) -> list[int]:
        """Store a call's events in `_new`; return the number of distinct keys of each table."""
        lengths = [len(keys) for keys, _ in parts.values()]
        places = 1 << max(1, (2 * max(lengths, default=0) - 1).bit_length())
        if places > len(self._scratch):
            self._scratch = np.empty(places, np.uint64)
        if sum(lengths) > self._new.room:
            self._new = _Events(np.empty(_EVENT_BYTES * sum(lengths), np.uint8))
        new, unique, end = self._new, [], 0
        for name, (keys, counts) in parts.items():
            place, low = self._tables[name].place, end
            of_table, count = record_keys(
                keys, counts, self._samples[place], self._scratch, new.keys[low:], new.counts[low:]
            )
            unique.append(of_table)
            end += count
            new.tables[low:end] = place
        new.count = end
        new.calls[:end] = self.calls
        return unique

    def _make_room(self) -> bool:
        """Halve the rate until all events fit; return False if the rate would become too low."""
        while self._events.count + self._new.count > self._events_max:
            if self.rate / 2 < _RATE_MIN:
                return False
            self.rate /= 2
            self._samples[:, 1] = spatial_limit(self.rate)
            self._events.keep(self._samples)
            self._new.keep(self._samples)
        return True


def _joined(call: Call) -> _Parts:
    """Return the keys and counts of each table of a call; counts of shape (0,) mean: each key
    once."""
    parts: dict[str, list[tuple[Keys, Counts | None]]] = {}
    for name, keys, counts in call:
        assert counts is None or len(counts) == len(keys), "a count a key"
        parts.setdefault(name, []).append((keys, counts))
    return {name: _one(of_table) for name, of_table in parts.items()}


def _one(parts: list[tuple[Keys, Counts | None]]) -> tuple[Keys, Counts]:
    weights = [_EACH_ONCE]
    if any(counts is not None for _, counts in parts):
        weights = [np.ones(len(keys), np.int64) if c is None else c for keys, c in parts]
    return _together([keys for keys, _ in parts]), _together(weights)


def _together(pieces: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces)

"""Files -> a profile: counts of a sample of the samples, whole samples, and a trace.

All three are of one pass over a **stream**: the samples of all files in their order, numbered from
0. What comes of sample i depends on i, the seed and its ids alone, so the same files give the same
profile however they are cut into chunks:

    counted    iff hash(seed, i) < rate * 2**64; all, at rate 1
    kept       iff its hash of another kind is among the SAMPLES_MAX smallest: a uniform sample, and
               one that has nothing to do with which were counted (a row is hot because of the
               samples that were counted; asked of those alone, hot sets would look too good)
    recorded   in a call with the other samples of [c * batch, (c + 1) * batch); calls are recorded
               from all samples, since one with a part of its keys would be no call

hash is SplitMix64 (Steele, Lea, Flood: OOPSLA 2014), whose output i can be had directly: one to one
over i, so no two samples are equal.

A sample of lists has the columns that its lists fill, each as wide as the longest list that was
kept. What is left of a shorter one repeats its first id, which changes nothing of whether all its
ids are hot; an empty list is filled with its table's most accessed row, for the same reason: a hot
set that has any of the table's rows has this one.

**Memory** is bounded whatever the files hold: the counters and the recorder by their own bounds
(`KeyCounter`, `Recorder`), kept samples by twice SAMPLES_MAX and by SAMPLE_IDS_MAX once they are
filled, one chunk, and one batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import ROWS_MAX, Keys
from embstore.errors import InvalidArgumentError
from embstore.frequency.counter import KeyCounter
from embstore.frequency.profile import Profile, Samples, TableProfile
from embstore.frequency.recorder import Recorder
from embstore_server.profiling.readers import Chunk, Column, SampleFile

SAMPLES_MAX = 16_384
"""A share of samples is then known to 0.8 points, 19 times of 20."""
SAMPLE_IDS_MAX = 1 << 22
"""Ids of all kept samples: long lists are kept of fewer samples."""
KEYS_MAX = 1 << 22
"""Distinct keys of a table that are counted exactly, unless it is said otherwise."""

_KEYS_MAX_LEAST = 2  # KeyCounter's own
_COUNTED, _KEPT = 0, 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Counting:
    """What is counted of the samples, and how."""

    tables: tuple[str, ...]
    """Of each column; a table may have several."""
    rate: float = 1.0
    seed: int = 0
    batch: int = 2048
    """Samples of a recorded call."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By table: larger ids are refused. 0 or absent: unknown."""
    hash_rows: Mapping[str, int] = field(default_factory=dict)
    """By table: ids are taken modulo this, and this is its rows."""
    keys_max: int = KEYS_MAX

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InvalidArgumentError(f"expected a rate above 0, at most 1, found {self.rate}")
        if self.batch < 1:
            raise InvalidArgumentError(f"expected a batch of at least 1, found {self.batch}")
        if self.keys_max < _KEYS_MAX_LEAST:
            raise InvalidArgumentError(
                f"expected to count at least {_KEYS_MAX_LEAST} keys, found {self.keys_max}"
            )
        for name, rows in [*self.rows.items(), *self.hash_rows.items()]:
            self._check_rows(name, rows)

    def _check_rows(self, name: str, rows: int) -> None:
        if name not in self.tables:
            raise InvalidArgumentError(
                f"expected rows of one of the tables {', '.join(dict.fromkeys(self.tables))}, "
                f"found {name!r}"
            )
        if not 1 <= rows <= ROWS_MAX:
            raise InvalidArgumentError(
                f"table {name!r}: expected rows from 1 to {ROWS_MAX}, found {rows}"
            )
        if name in self.rows and name in self.hash_rows:
            raise InvalidArgumentError(
                f"table {name!r}: expected its rows once, found them with and without hashing"
            )

    def keys(self, column: int, ids: Keys, place: str) -> Keys:
        """Return the keys of a column's ids.

        Raises
        ------
        InvalidArgumentError : one is negative, or beyond its table.
        """
        name = self.tables[column]
        if not len(ids):
            return ids
        modulus = self.hash_rows.get(name)
        bound = self.rows.get(name, ROWS_MAX)
        low = ids.min()
        if low < 0:
            raise InvalidArgumentError(f"{place}: table {name!r}: expected ids >= 0, found {low}")
        if modulus is not None:
            return ids % modulus
        if ids.max() >= bound:
            raise InvalidArgumentError(
                f"{place}: table {name!r}: expected ids below {bound}, found {ids.max()}"
            )
        return ids

    def rows_of(self, name: str) -> int:
        """Return the rows of a table, 0 where they are not known."""
        return self.hash_rows.get(name, self.rows.get(name, 0))


def count_files(
    files: Iterable[SampleFile],
    counting: Counting,
    advance: Callable[[int], None] = lambda _: None,
) -> "SampleCounter":
    """Count the samples of files, one after the other; `advance` is told the bytes read of them.

    Raises
    ------
    InvalidArgumentError : something in a file is not of its format, or an id is no key.
    """
    counter = SampleCounter(counting)
    for file in files:
        for chunk in file.chunks():
            counter.add(chunk)
            advance(chunk.file_bytes)
    return counter


class SampleCounter:
    """Counts a stream of samples. One thread."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self._counters = {name: KeyCounter(counting.keys_max) for name in counting.tables}
        self._kept = _KeptSamples(counting.seed)
        self._calls = _Calls(counting)
        self.samples = 0  # of the stream so far
        self.counted = 0

    @property
    def memory_bytes(self) -> int:
        """What the counters and the recorder take."""
        counters = sum(counter.memory_bytes for counter in self._counters.values())
        return counters + self._calls.recorder.memory_bytes

    def add(self, chunk: Chunk) -> None:
        """Take the next samples of the stream.

        Raises
        ------
        InvalidArgumentError : an id is no key. Nothing of the chunk was counted.
        """
        columns = [
            Column(self._counting.keys(i, column.ids, chunk.place), column.offsets)
            for i, column in enumerate(chunk.columns)
        ]
        self._kept.add(self.samples, columns)
        self._calls.add(columns)
        self._count(columns)
        self.samples += chunk.samples

    def _count(self, columns: list[Column]) -> None:
        count = len(columns[0])
        if self._counting.rate < 1:
            hashes = sample_hashes(self._counting.seed, _COUNTED, self.samples, count)
            wanted = hashes < np.uint64(self._counting.rate * 2**64)
            columns = [column.chosen(wanted) for column in columns]
        for name, column in zip(self._counting.tables, columns, strict=True):
            self._counters[name].add(column.ids)
        self.counted += len(columns[0])

    def profile(self) -> Profile:
        """Return the profile of the stream so far. It ends the call that is being recorded."""
        self._calls.finish()
        counting = self._counting
        tables = {
            name: counter.profile(name, counting.rows_of(name))
            for name, counter in self._counters.items()
        }
        return Profile(
            tables,
            rate=counting.rate,
            seed=counting.seed,
            samples=self._kept.filled([tables[name] for name in counting.tables]),
            trace=self._calls.recorder.trace(),
        )


def sample_hashes(seed: int, kind: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return the hashes (count,) of the samples from `first` on; different ones for every kind."""
    start = _mixed(np.array([(seed + kind * _GOLDEN) & _MASK], np.uint64))
    return _mixed(start + np.arange(first, first + count, dtype=np.uint64) * np.uint64(_GOLDEN))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's output function of each value: one to one."""
    z = values
    for shift, multiplier in _ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(multiplier)
    return z ^ (z >> _LAST_SHIFT)


class _KeptSamples:
    """The samples of the smallest hashes, in the order of the stream."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._limit = np.uint64(_MASK)  # above it none is kept any more
        self._hashes: list[NDArray[np.uint64]] = []
        self._columns: list[list[Column]] = []
        self._held = 0

    def add(self, first: int, columns: Sequence[Column]) -> None:
        hashes = sample_hashes(self._seed, _KEPT, first, len(columns[0]))
        wanted = hashes <= self._limit
        if not wanted.any():
            return
        self._hashes.append(hashes[wanted])
        self._columns.append([column.chosen(wanted) for column in columns])
        self._held += len(self._hashes[-1])
        if self._held > 2 * SAMPLES_MAX:
            self._keep(SAMPLES_MAX)

    def _keep(self, count: int) -> None:
        """Keep the `count` samples of the smallest hashes, in one piece."""
        hashes = np.concatenate(self._hashes)
        columns = [Column.joined(pieces) for pieces in zip(*self._columns, strict=True)]
        if len(hashes) > count:
            self._limit = np.partition(hashes, count - 1)[count - 1]
            wanted = hashes <= self._limit
            hashes, columns = hashes[wanted], [column.chosen(wanted) for column in columns]
        self._hashes, self._columns, self._held = [hashes], [columns], len(hashes)

    def filled(self, tables: Sequence[TableProfile]) -> Samples | None:
        """Return the samples as a matrix; None, where there is none, or none has an id."""
        if not self._held:
            return None
        self._keep(SAMPLES_MAX)
        widths = self._widths()
        self._keep(max(1, min(SAMPLES_MAX, SAMPLE_IDS_MAX // max(1, sum(widths)))))
        columns = self._columns[0]
        parts, names = [], []
        for table, column, width in zip(tables, columns, self._widths(), strict=True):
            parts.append(_filled(column, width, table))
            names += [table.name] * width
        return Samples(tuple(names), np.ascontiguousarray(np.hstack(parts))) if names else None

    def _widths(self) -> list[int]:
        columns = self._columns[0]
        return [
            1 if column.offsets is None else int(np.diff(column.offsets).max())
            for column in columns
        ]


def _filled(column: Column, width: int, table: TableProfile) -> NDArray[np.int64]:
    """Return the ids (n, width) of a column whose longest list has `width`."""
    if column.offsets is None:
        return column.ids[:, None]
    if not width:
        return np.empty((len(column), 0), np.int64)
    starts, lengths = column.offsets[:-1], np.diff(column.offsets)
    top = table.keys[np.argmax(table.counts)] if len(table.keys) else 0
    ids = np.append(column.ids, top)
    places = np.arange(width)
    within = places < lengths[:, None]
    first = np.where(lengths, starts, len(ids) - 1)[:, None]
    filled: NDArray[np.int64] = ids[np.where(within, starts[:, None] + places, first)]
    return filled


class _Calls:
    """Cuts the stream into calls of `batch` samples, and records them."""

    def __init__(self, counting: Counting) -> None:
        self.recorder = Recorder()
        self._tables = counting.tables
        self._batch = counting.batch
        self._pieces: list[list[Column]] = []
        self._held = 0  # samples in the pieces, fewer than a batch

    def add(self, columns: Sequence[Column]) -> None:
        start, count = 0, len(columns[0])
        while start < count:
            stop = min(count, start + self._batch - self._held)
            self._pieces.append([column.part(start, stop) for column in columns])
            self._held += stop - start
            if self._held == self._batch:
                self.finish()
            start = stop

    def finish(self) -> None:
        """Record what there is of the running call."""
        if not self._held:
            return
        self.recorder.record(
            [
                (name, column.ids, None)
                for columns in self._pieces
                for name, column in zip(self._tables, columns, strict=True)
            ]
        )
        self._pieces, self._held = [], 0

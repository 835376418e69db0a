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

Samples are kept as they are, each with its lists as long as they are. Where all of these would have
more than SAMPLE_IDS_MAX ids, fewer are kept: those of the smallest hashes still, as many as have no
more ids together. So one long list takes room from none but a few.

**Memory** is bounded whatever the files hold: the counters and the recorder by their own bounds
(`KeyCounter`, `Recorder`), kept samples by twice SAMPLES_MAX and twice SAMPLE_IDS_MAX, one chunk,
and one batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import ROWS_MAX, Keys
from embstore.errors import InvalidArgumentError
from embstore.frequency.checks import INT64_MAX, check_int
from embstore.frequency.counter import KeyCounter
from embstore.frequency.profile import Profile, Samples
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
        check_int(self.seed, "a seed", low=-INT64_MAX)
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
        self._kept = _KeptSamples(counting.tables, counting.seed)
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
            samples=self._kept.samples(),
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
    """The samples of the smallest hashes, in the order of the stream.

    Those are kept whose hash is among the SAMPLES_MAX smallest, and whose ids, with those of all
    samples of smaller hashes, are no more than SAMPLE_IDS_MAX; but at least one. What more samples
    bring can only make both harder. So who is left out once is left out of all of the stream, and
    with it all of larger hashes.
    """

    def __init__(self, tables: tuple[str, ...], seed: int) -> None:
        self._tables = tables
        self._seed = seed
        self._limit: np.uint64 | None = None  # from it on none is kept any more
        self._hashes: list[NDArray[np.uint64]] = []
        self._columns: list[list[Column]] = []
        self._held = 0
        self._held_ids = 0

    def add(self, first: int, columns: Sequence[Column]) -> None:
        hashes = sample_hashes(self._seed, _KEPT, first, len(columns[0]))
        if self._limit is not None:
            wanted = hashes < self._limit
            hashes, columns = hashes[wanted], [column.chosen(wanted) for column in columns]
        if not len(hashes):
            return
        self._hashes.append(hashes)
        self._columns.append(list(columns))
        self._held += len(hashes)
        self._held_ids += sum(len(column.ids) for column in columns)
        if self._held > 2 * SAMPLES_MAX or self._held_ids > 2 * SAMPLE_IDS_MAX:
            self._keep()

    def _keep(self) -> None:
        """Leave out what is not kept any more, and hold the rest in one piece."""
        hashes = np.concatenate(self._hashes)
        columns = [Column.joined(pieces) for pieces in zip(*self._columns, strict=True)]
        order = np.argsort(hashes)
        lengths = np.sum([column.lengths() for column in columns], axis=0)
        ids = np.cumsum(lengths[order])
        count = max(1, min(SAMPLES_MAX, int(np.searchsorted(ids, SAMPLE_IDS_MAX, side="right"))))
        if len(hashes) > count:
            self._limit = hashes[order[count]]
            wanted = hashes < self._limit
            hashes, columns = hashes[wanted], [column.chosen(wanted) for column in columns]
        self._hashes, self._columns, self._held = [hashes], [columns], len(hashes)
        self._held_ids = sum(len(column.ids) for column in columns)

    def samples(self) -> Samples | None:
        """Return the samples; None, where there is none, or none has an id."""
        if not self._held_ids:
            return None
        self._keep()
        columns = self._columns[0]
        lengths = np.stack([column.lengths() for column in columns], axis=1)
        return Samples(self._tables, lengths, np.concatenate([column.ids for column in columns]))


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

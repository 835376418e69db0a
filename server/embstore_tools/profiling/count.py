"""Makes a profile from files: counts from a part of the samples, some kept samples, and a trace.

All three are made in one pass over a **stream**, which contains the samples of all files in order,
numbered from 0. The treatment of sample i depends only on i, the seed and the sample's ids. So the
same files give the same profile, however they are cut into chunks:

    counted    iff hash(seed, i) < rate * 2**64; all samples at rate 1
    kept       iff a second hash of i is among the SAMPLES_MAX smallest: a uniform choice, and
               independent of which samples were counted. (A row is hot because of the counted
               samples, so hot sets would look too good if they were tested on these samples.)
    recorded   in a call with the other samples of [c * batch, (c + 1) * batch); calls are recorded
               with all their samples, because a call with a part of its keys would be no real call

The hash is SplitMix64 (Steele, Lea, Flood: OOPSLA 2014), whose output i can be computed directly.
It is one to one over i, so no two samples have equal hashes.

Samples are kept unchanged, each with its full lists. If they would have more than SAMPLE_IDS_MAX
ids together, fewer samples are kept: those of the smallest hashes whose ids together do not exceed
that number. So one long list displaces only a few samples.

**Memory** is bounded for any files. The counters and the recorder have bounds of their own
(`KeyCounter`, `Recorder`). Kept samples are bounded by twice SAMPLES_MAX and twice SAMPLE_IDS_MAX,
one chunk, and one batch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import ROWS_MAX, SPARSE_ROWS, Keys
from embstore.hotness.counter import KeyCounter
from embstore.hotness.recorder import Recorder
from embstore.profiles.checks import INT64_MAX, check, check_int
from embstore.profiles.profile import Profile, Samples
from embstore_tools.profiling.readers import Chunk, Column, SampleFile

SAMPLES_MAX = 16_384
"""The largest number of kept samples. With so many samples, 19 of 20 estimates of a share of
samples are right to 0.8 points."""
SAMPLE_IDS_MAX = 1 << 22
"""The most ids of all kept samples together; if samples have long lists, fewer of them are kept."""
KEYS_MAX = 1 << 22
"""The default number of distinct keys of a table that are counted exactly."""

_KEYS_MAX_LEAST = 2  # as KeyCounter requires
_COUNTED, _KEPT = 0, 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Counting:
    """The parameters of counting."""

    tables: tuple[str, ...]
    """The table of each column; several columns can have the same table."""
    rate: float = 1.0
    seed: int = 0
    batch: int = 2048
    """Number of samples per recorded call."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """The number of rows by table; ids beyond it are refused. A missing table has an unknown
    number. SPARSE_ROWS: keys are sparse."""
    keys_max: int = KEYS_MAX

    def __post_init__(self) -> None:
        check_int(self.seed, "a seed", low=-INT64_MAX)
        check(0 < self.rate <= 1, "a rate above 0, at most 1", self.rate)
        check(self.batch >= 1, "a batch of at least 1", self.batch)
        least = _KEYS_MAX_LEAST
        check(self.keys_max >= least, f"to count at least {least} keys", self.keys_max)
        tables = ", ".join(dict.fromkeys(self.tables))
        for name, rows in self.rows.items():
            check(name in self.tables, f"rows of one of the tables {tables}", repr(name))
            is_so = 1 <= rows <= ROWS_MAX or rows == SPARSE_ROWS
            check(is_so, f"rows from 1 to {ROWS_MAX}", rows, f"table {name!r}: ")

    def keys(self, column: int, ids: Keys, place: str) -> Keys:
        """Return the keys of a column's ids, after checking that the ids are below the table's
        number of rows."""
        name = self.tables[column]
        if not len(ids):
            return ids
        where, bound = f"{place}: table {name!r}: ", self.rows.get(name, ROWS_MAX)
        if bound != SPARSE_ROWS:
            check(ids.min() >= 0, "ids >= 0", f"{ids.min()}; --hash-rows takes any", where)
        high = ids.view(np.uint64).max()
        check(high < bound, f"ids below {bound}", high, where)
        return ids

    def rows_of(self, name: str) -> int:
        """Return the rows of a table for its profile: 0 if they are not known, or if keys are
        sparse."""
        rows = self.rows.get(name, 0)
        return 0 if rows == SPARSE_ROWS else rows


def count_files(
    files: Iterable[SampleFile], counting: Counting, advance: Callable[[int], None] = lambda _: None
) -> "SampleCounter":
    """Count the samples of files, one file after the other; call `advance` with the bytes read."""
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
        """Bytes of memory of the counters and the recorder."""
        counters = sum(counter.memory_bytes for counter in self._counters.values())
        return counters + self._calls.recorder.memory_bytes

    def add(self, chunk: Chunk) -> None:
        """Count the next samples of the stream. If an id is no key, raise an error, and count none
        of these samples."""
        columns = [
            Column(self._counting.keys(i, column.ids, chunk.place), column.offsets)
            for i, column in enumerate(chunk.columns)
        ]
        self._kept.add(self.samples, columns)
        self._calls.add(columns)
        if self._counting.rate < 1:
            hashes = sample_hashes(self._counting.seed, _COUNTED, self.samples, chunk.samples)
            wanted = hashes < np.uint64(self._counting.rate * 2**64)
            columns = [column.chosen(wanted) for column in columns]
        for name, column in zip(self._counting.tables, columns, strict=True):
            self._counters[name].add(column.ids)
        self.counted += len(columns[0])
        self.samples += chunk.samples

    def profile(self) -> Profile:
        """Return the profile of the stream so far. This also ends the call that is being
        recorded."""
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
    """Return the hashes (count,) of the samples from `first` on; each kind has different hashes."""
    start = _mixed(np.array([(seed + kind * _GOLDEN) & _MASK], np.uint64))
    return _mixed(start + np.arange(first, first + count, dtype=np.uint64) * np.uint64(_GOLDEN))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's output function of each value; it is one to one."""
    z = values
    for shift, multiplier in _ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(multiplier)
    return z ^ (z >> _LAST_SHIFT)


class _KeptSamples:
    """The samples of the smallest hashes, in the order of the stream.

    A sample is kept if its hash is among the SAMPLES_MAX smallest, and its ids, with the ids of all
    samples of smaller hashes, are no more than SAMPLE_IDS_MAX; but at least one sample is kept.
    Further samples can only make both conditions harder to meet. So a sample that was left out once
    stays left out, and so do all samples of larger hashes.
    """

    def __init__(self, tables: tuple[str, ...], seed: int) -> None:
        self._tables = tables
        self._seed = seed
        self._limit: int | np.uint64 = 1 << 64  # no sample with this or a larger hash is kept
        self._hashes: list[NDArray[np.uint64]] = []
        self._columns: list[list[Column]] = []
        self._kept_ids = 0

    def add(self, first: int, columns: Sequence[Column]) -> None:
        hashes = sample_hashes(self._seed, _KEPT, first, len(columns[0]))
        self._choose(hashes, columns)
        count = sum(map(len, self._hashes))
        if count > 2 * SAMPLES_MAX or self._kept_ids > 2 * SAMPLE_IDS_MAX:
            self._keep()

    def _choose(self, hashes: NDArray[np.uint64], columns: Sequence[Column]) -> None:
        """Keep the samples whose hashes are below the limit."""
        wanted = hashes < self._limit
        if wanted.any():
            self._hashes.append(hashes[wanted])
            self._columns.append([column.chosen(wanted) for column in columns])
            self._kept_ids += sum(len(column.ids) for column in self._columns[-1])

    def _keep(self) -> None:
        """Drop samples that are now beyond the bounds, and join the remaining samples."""
        hashes = np.concatenate(self._hashes)
        columns = [Column.joined(pieces) for pieces in zip(*self._columns, strict=True)]
        order = np.argsort(hashes)
        lengths = np.sum([column.lengths() for column in columns], axis=0)
        ids = np.cumsum(lengths[order])
        count = max(1, min(SAMPLES_MAX, int(np.searchsorted(ids, SAMPLE_IDS_MAX, side="right"))))
        if len(hashes) > count:
            self._limit = hashes[order[count]]
        self._hashes, self._columns, self._kept_ids = [], [], 0
        self._choose(hashes, columns)

    def samples(self) -> Samples | None:
        """Return the samples, or None if there is no sample, or no sample has an id."""
        if not self._kept_ids:
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
        self._kept = 0  # number of samples in the pieces, fewer than a batch

    def add(self, columns: Sequence[Column]) -> None:
        start, count = 0, len(columns[0])
        while start < count:
            stop = min(count, start + self._batch - self._kept)
            self._pieces.append([column.part(start, stop) for column in columns])
            self._kept += stop - start
            if self._kept == self._batch:
                self.finish()
            start = stop

    def finish(self) -> None:
        """Record the current call, even if it has fewer samples than a batch."""
        if not self._kept:
            return
        pieces = [
            pair for columns in self._pieces for pair in zip(self._tables, columns, strict=True)
        ]
        self.recorder.record([(name, column.ids, None) for name, column in pieces])
        self._pieces, self._kept = [], 0

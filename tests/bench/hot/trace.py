"""The trace: samples of the demo's planted model in columns, and counts of the trace.

A column of ids has the name of its table. Samples are drawn once and kept in memory, so a batch is
a view, and no contestant's time includes making it. The last samples are held out.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.hotness.counter import KeyCounter
from embstore.profiles.profile import Profile
from embstore_tools.demo.columns import table_name
from embstore_tools.demo.criteo import INTEGERS
from embstore_tools.demo.dlrm import dense_features
from embstore_tools.demo.synthetic import Source
from tests.bench.hot.scale import Scale

FEATURES, LABELS = "features", "labels"
_BLOCK = 1 << 16
_CHUNK_BATCHES = 4

Columns = dict[str, NDArray[np.generic]]
"""Samples: a column of ids for each table, FEATURES (n, 13) and LABELS (n,), both float32."""


class Draws(Source):
    """The samples that the demo's source writes as lines of text, without the text."""

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return integers (n, 13), ids (n, columns) and labels (n,) of the next samples."""
        rng = self._rng
        integers = np.exp(rng.normal(self._logs_mean, 1.0, (count, INTEGERS))).astype(np.int64) - 1
        ids = np.stack([column.draw(count, rng) for column in self._columns], axis=1)
        missing = rng.random((count, len(self._missing))) < self._missing
        integers[missing[:, :INTEGERS]] = 0
        ids[missing[:, INTEGERS:]] = 0
        return integers, ids, rng.random(count) < self._probabilities(integers, ids)


class Trace:
    """Samples to train on, and held-out ones."""

    def __init__(self, scale: Scale) -> None:
        self.tables = tuple(table_name(column) for column in range(len(scale.rows)))
        self.rows = dict(zip(self.tables, scale.rows, strict=True))
        self._scale = scale
        whole = self._drawn(scale.samples + scale.held_out_samples)
        self.columns: Columns = {name: v[: scale.samples] for name, v in whole.items()}
        self.held_out: Columns = {name: v[scale.samples :] for name, v in whole.items()}

    def _drawn(self, count: int) -> Columns:
        source = Draws(self._scale.rows, self._scale.seed)
        ids = {table: np.empty(count, np.int64) for table in self.tables}
        features, labels = np.empty((count, INTEGERS), np.float32), np.empty(count, np.float32)
        for low in range(0, count, _BLOCK):
            part = slice(low, min(low + _BLOCK, count))
            integers, drawn, is_click = source.draw(part.stop - low)
            features[part], labels[part] = dense_features(integers), is_click
            for column, table in enumerate(self.tables):
                ids[table][part] = drawn[:, column]
        return {**ids, FEATURES: features, LABELS: labels}

    def batches(self, columns: Columns | None = None) -> Iterator[Columns]:
        """Yield all samples in their order, batch by batch; or those of `columns`."""
        return _cut(self.columns if columns is None else columns, self._scale.batch_samples)

    def chunks(self) -> Iterator[Columns]:
        """Yield all samples in their order, in chunks for a packer."""
        return _cut(self.columns, _CHUNK_BATCHES * self._scale.batch_samples)

    def keys_of(self, batch: Columns) -> dict[str, Keys]:
        return {table: batch[table].astype(np.int64, copy=False) for table in self.tables}

    def profile(self, rate: float = 1.0) -> Profile:
        """Return the profile of the samples to train on, or of a part of them."""
        seed = self._scale.seed
        chosen = np.random.default_rng(seed).random(self._scale.samples) < rate
        found = {}
        for table, ids in self.keys_of(self.columns).items():
            counter = KeyCounter()
            counter.add(ids if rate == 1 else ids[chosen])
            found[table] = counter.profile(table, self.rows[table])
        return Profile(found, rate=rate, seed=seed)


def _cut(columns: Columns, count: int) -> Iterator[Columns]:
    samples = len(columns[LABELS])
    for low in range(0, samples, count):
        yield {name: values[low : low + count] for name, values in columns.items()}


def offline_rate(profile: Profile, slots: int) -> float:
    """Return the share of accesses to the `slots` most accessed rows of all tables: the hit rate
    of a cache that holds these from the beginning."""
    counts = np.concatenate([table.counts for table in profile.tables.values()])
    slots = min(slots, len(counts))
    top = np.partition(counts, len(counts) - slots)[len(counts) - slots :]
    return float(top.sum() / sum(table.accesses for table in profile.tables.values()))


def recall(sampled: Profile, whole: Profile, slots: int) -> float:
    """Return the accesses to the top rows by a sample over those to the true top rows.

    Of equal counts the keys that come first are taken, as a rank does; rows that the sample has not
    seen are none of its top rows, so it may have fewer.
    """
    true, found = [], []
    for name, table in whole.tables.items():
        by_sample = sampled.tables[name]
        counts = np.zeros(len(table.keys), np.int64)
        counts[np.searchsorted(table.keys, by_sample.keys)] = by_sample.counts
        true.append(table.counts)
        found.append(counts)
    true_counts, sampled_counts = np.concatenate(true), np.concatenate(found)
    chosen = np.argsort(-sampled_counts, kind="stable")[:slots]
    chosen = chosen[sampled_counts[chosen] > 0]
    best = np.sort(true_counts)[::-1][:slots]
    return float(true_counts[chosen].sum() / best.sum())

"""What the rules of tiers.py cost, played with the sizes of files and without files."""

from itertools import pairwise

import numpy as np
import pytest

from embstore.storage.catalogue import PartEntry
from embstore.storage.key_index import KeyIndex
from embstore.storage.run import Part, RunFile
from embstore.storage.tiers import SPACE, arranged, choose
from tests.unit.small_stores import generator, show

SEED = 83
RECORD = 64
PART = 1 << 17
NONE = np.empty(0, np.int64)


class Played:
    """A base whose merges cost nothing: what is written is counted."""

    def __init__(self, part_bytes=PART):
        self.runs = ()
        self.written = 0
        self.updated = 0
        self.most_runs = 0
        self.most_space = 0.0
        self.merges = 0
        self._number = 0
        self._part_bytes = part_bytes

    def fold(self, keys):
        """Fold rows of ascending keys, and do all merges that are then due."""
        self.updated += len(keys) * RECORD
        self.runs = arranged((*self.runs, self._write(keys)), self._part_bytes)
        while (choice := choose(self.runs, self._part_bytes, NONE)) is not None:
            self._merge(choice)
        self.most_runs = max(self.most_runs, len(self.runs))
        files = {part.entry.path: part.entry.bytes for run in self.runs for part in run}
        rows = len(np.unique(np.concatenate([self.keys(run) for run in self.runs])))
        self.most_space = max(self.most_space, sum(files.values()) / (rows * RECORD))

    def keys(self, run):
        parts = [p.file.index.between(p.entry.low, p.entry.high)[0] for p in run]
        return np.concatenate([NONE, *parts])

    @property
    def cost(self):
        """Bytes written by folds and merges for each byte that was updated."""
        return self.written / self.updated

    def _write(self, keys):
        self._number += 1
        count = max(1, -(-len(keys) * RECORD // self._part_bytes))
        parts = []
        for piece in np.array_split(keys, count):
            index = KeyIndex.of(piece, [(0, 4096, RECORD)])
            size = index.end + index.directory.nbytes + index.containers.nbytes + 64
            low, high = int(piece[0]), int(piece[-1]) + 1
            entry = PartEntry(self._number, len(parts), 1, low, high, size, 0)
            file = RunFile(entry.path, np.empty(0, np.uint8), index, {0: len(piece) * RECORD})
            parts.append(Part(entry, file))
            self.written += size
        return tuple(parts)

    def _merge(self, choice):
        self.merges += 1
        assert self.merges < 10_000, "merges without end"
        merged, changed = NONE, []
        for number, run in enumerate(self.runs):
            if choice.oldest <= number <= choice.newest:
                keys = self.keys(run)
                inside = (keys >= choice.low) & (keys < choice.high)
                merged = np.union1d(merged, keys[inside])
                run = tuple(p for part in run for p in part.without(choice.low, choice.high))
            changed.append(run)
        new = (*changed[choice.oldest], *self._write(merged))
        changed[choice.oldest] = tuple(sorted(new, key=lambda part: part.entry.low))
        self.runs = arranged(changed, self._part_bytes)


def check(base, cost, runs):
    show(f"written {base.cost:.2f}, space {base.most_space:.2f}, runs {base.most_runs}")
    for run in base.runs:
        for left, right in pairwise(run):
            assert left.entry.high <= right.entry.low
    assert base.cost < cost
    assert base.most_runs <= runs


def test_rows_updated_at_random_are_written_about_six_times_with_the_log():
    base, rng = Played(), generator(SEED)
    base.fold(np.arange(50_000))
    base.updated = base.written = 0
    for _ in range(200):
        base.fold(np.sort(rng.choice(50_000, 1_000, replace=False)))
    check(base, cost=5.0, runs=12)
    assert base.most_space < SPACE + 0.1


def test_rows_written_in_key_order_are_written_once():
    base = Played()
    for low in range(0, 100_000, 2_000):
        base.fold(np.arange(low, low + 2_000))
    check(base, cost=1.1, runs=1)
    assert base.merges == 0


@pytest.mark.parametrize("rows", [1_000, 150], ids=["parts", "small-folds"])
def test_rows_first_written_at_random(rows):
    base, order = Played(), generator(SEED).permutation(rows * 60)
    for piece in np.array_split(order, 60):
        base.fold(np.sort(piece))
    check(base, cost=7.0, runs=12)


def test_folds_of_very_different_sizes_leave_few_runs():
    base, rng = Played(), generator(SEED)
    base.fold(np.arange(50_000))
    for turn in range(300):
        count = (15, 15, 15, 1_000)[turn % 4]
        base.fold(np.sort(rng.choice(50_000, count, replace=False)))
    check(base, cost=7.0, runs=13)


def test_a_hot_range_does_not_rewrite_the_others():
    base, rng = Played(), generator(SEED)
    base.fold(np.arange(50_000))
    cold = base.runs[0][-1].entry
    base.updated = base.written = 0
    for _ in range(200):
        base.fold(np.sort(rng.choice(2_500, 500, replace=False)))
    check(base, cost=5.0, runs=8)
    assert cold in [part.entry for part in base.runs[0]]


def test_keys_all_over_the_range_make_no_more_files_than_their_bytes_need():
    base, rng = Played(), generator(SEED)
    for _ in range(40):
        base.fold(np.unique(rng.integers(0, 1 << 40, 1_000)))
    files = {part.entry.path for run in base.runs for part in run}
    assert len(files) <= 2 * (40_000 * (RECORD + 42) / PART) + 12
    check(base, cost=9.0, runs=12)

"""A merge of runs of the base: the newest record of each row, in a range of keys.

tiers.py chooses the runs and the range. The result replaces that range in the oldest of these runs,
and the range is cut out of the newer runs. Tombstones that hide rows of a run older than these runs
are written to a separate run, which follows the result.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from embstore.arrays import KEY_BITS, Keys
from embstore.storage.catalogue import Catalogue
from embstore.storage.contents import Contents
from embstore.storage.copying import cuts_of, group_counts, newest, rows_between, write_newest
from embstore.storage.run import Run, RunWriter
from embstore.storage.tiers import Choice, choose

_PIECE_ROWS = 1 << 20
"""Number of rows whose keys are in memory at the same time."""


@dataclass
class BaseMerge:
    """One merge of runs."""

    choice: Choice
    inputs: list[Run]  # oldest first
    older: tuple[Run, ...]  # older than all inputs
    writer: RunWriter
    needed: Keys  # ids of the tables that a kept state names
    runs: tuple[Run, ...] = ()

    @classmethod
    def due(cls, contents: Contents) -> "BaseMerge | None":
        """Return a merge if one is due. Engine thread only."""
        runs, part_bytes = contents.base.runs, contents.limits.base_segment_bytes
        needed = np.array(sorted(contents.catalogue.table_ids()), np.int64)
        dropped = np.setdiff1d(contents.base.table_ids(), needed)
        first = 0
        for group in contents.grouped(runs):
            choice = choose(group, part_bytes, dropped, has_older=first > 0)
            if choice is not None:
                break
            first += len(group)
        else:
            return None
        choice = replace(choice, oldest=first + choice.oldest, newest=first + choice.newest)
        inputs = list(runs[choice.oldest : choice.newest + 1])
        commit = inputs[-1][0].entry.commit
        cuts = np.array([choice.low, choice.high], np.int64)
        size = sum(int(part.bytes_between(cuts)[0]) for run in inputs for part in run)
        parts = max(1, -(-size // part_bytes))  # all parts of about the same size
        writer = contents.new_run(commit, -(-size // parts))
        return cls(choice, inputs, runs[: choice.oldest], writer, needed)

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the newest records durably to new parts."""
        ends = self.choice.low, self.choice.high
        counted = group_counts(self.inputs, *ends)
        for low, high in pairwise(cuts_of(counted, *ends, _PIECE_ROWS)):
            stored = newest([rows_between(run, low, high) for run in self.inputs])
            kept = np.isin(stored.keys >> KEY_BITS, self.needed)
            copied = partial(reached, "base_merge:rows")
            write_newest(stored.at(kept), self.older, self.writer, copied)
        self.writer.close()
        reached("base_merge:synced")

    def catalogue(self, contents: Contents) -> Catalogue:
        """Return the catalogue in which the new parts replace the merged parts."""
        choice = self.choice
        changed = []
        for number, run in enumerate(contents.base.runs):
            if choice.oldest <= number <= choice.newest:
                run = tuple(p for part in run for p in part.without(choice.low, choice.high))
            if number == choice.oldest:  # this run has rows if any of the inputs has rows
                run = tuple(sorted((*run, *self.writer.run), key=lambda part: part.entry.low))
            changed.append(run)
            if number == choice.oldest:
                changed.append(self.writer.tombstones)
        self.runs = contents.arranged(changed)
        return contents.with_runs(self.runs)

    def install(self, contents: Contents) -> Iterator[int]:
        """Make the result current, and remove the replaced parts."""
        contents.use_runs(self.runs)
        return iter(())

    def discard(self, contents: Contents) -> None:
        """Remove the written files."""
        self.writer.abandon()

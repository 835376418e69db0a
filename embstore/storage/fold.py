"""A fold: the newest records of the oldest log segments, written to a new run of the base.

A fold is due when the committed segments have `fold_bytes` together, or when there are many of
them. All segments of a fold lie between the same two kept checkpoints, so that every kept state
stays readable. A row that was deleted since its last fold gets a tombstone in the base.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.storage.catalogue import Catalogue
from embstore.storage.contents import Contents
from embstore.storage.copying import Stored, write_newest
from embstore.storage.run import Run, RunWriter
from embstore.storage.segment import Segment, first_of, newest_in, places_of


@dataclass
class Fold:
    """One fold: the segments that it reads and, after `run`, the run that it has written."""

    segments: list[Segment]  # oldest first
    older: tuple[Run, ...]
    writer: RunWriter
    needed: NDArray[np.int64]  # ids of the tables that a kept state names
    keys: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    positions: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    runs: tuple[Run, ...] = ()

    @classmethod
    def due(cls, contents: Contents) -> "Fold | None":
        """Return a fold if one is due. Engine thread only."""
        limits, interval = contents.limits, contents.catalogue.interval
        committed = [s for s in contents.log.segments if s.commit]
        is_due = sum(s.bytes for s in committed) >= limits.fold_bytes
        if not committed or not (is_due or len(committed) >= limits.fold_segments):
            return None
        first = interval(committed[0].commit)
        chosen = [s for s in committed if interval(s.commit) == first]
        chosen = first_of(chosen, limits.segment_bytes)
        needed = np.array(sorted(contents.catalogue.table_ids()), np.int64)
        run = contents.new_run(chosen[-1].commit, limits.base_segment_bytes)
        return cls(chosen, contents.base.runs, run, needed)

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the newest records durably to the run."""
        self.keys, self.positions = newest_in(self.segments)
        kept = np.isin(self.keys >> KEY_BITS, self.needed)
        sizes, addresses = places_of(self.segments, self.positions)
        stored = Stored(self.keys, addresses, sizes).at(kept)
        write_newest(stored, self.older, self.writer, partial(reached, "fold:rows"))
        self.writer.close()
        reached("fold:synced")

    def catalogue(self, contents: Contents) -> Catalogue:
        """Return the catalogue in which the written runs replace the segments, and are the newest
        runs."""
        folded = {s.number for s in self.segments}
        written = self.writer.run, self.writer.tombstones
        self.runs = contents.arranged((*contents.base.runs, *written))
        left = tuple(s for s in contents.catalogue.segments if s.number not in folded)
        return replace(contents.with_runs(self.runs), segments=left)

    def install(self, contents: Contents) -> Iterator[int]:
        """Make the written runs current, in slices, and remove the segments that they replace."""
        contents.use_runs(self.runs)
        yield from contents.log.replace(self.segments, None, self.keys, self.positions)
        paths, maps = [s.path for s in self.segments], [s.map for s in self.segments]
        contents.removal.remove(paths, maps)

    def discard(self, contents: Contents) -> None:
        """Remove the written files."""
        self.writer.abandon()

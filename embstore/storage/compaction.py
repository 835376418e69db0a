"""A compaction: the live records of some log segments, written to one new segment.

A compaction rewrites segments of which less than half is live, or many small segments. The log
index shows which records are live in memory. Therefore committed segments are compacted only
directly after a commit, when memory and commit agree. Frozen segments, which a kept checkpoint
needs, are never compacted. At other times only uncommitted segments are compacted, so that a cache
that thrashes between two checkpoints does not fill the disk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.layout import RECORD_HEADER_BYTES, ROW_ALIGNMENT_BYTES
from embstore.storage.catalogue import Catalogue, SegmentEntry
from embstore.storage.contents import Contents
from embstore.storage.copying import Stored, records_of
from embstore.storage.row_index import TOMBSTONE
from embstore.storage.segment import (
    Segment,
    SegmentWriter,
    capacity_for,
    first_of,
    newest_in,
    places_of,
)


@dataclass
class Compaction:
    """One compaction: the segments that it reads and, after `run`, the segment that it has
    written."""

    segments: list[Segment]  # oldest first
    keys: Keys  # of the live records: rows by ascending key, then tombstones by ascending key
    positions: NDArray[np.int64]
    writer: SegmentWriter
    result: Segment | None = None

    @classmethod
    def due(cls, contents: Contents) -> "Compaction | None":
        """Return a compaction if one is due. Engine thread only."""
        log, limits = contents.log, contents.limits
        sealed = [s for s in log.segments if not log.is_frozen(s)]
        agreeing = not (log.uncommitted or log.appending_records or log.forgetful)
        candidates = sealed if agreeing else [s for s in sealed if not s.commit]
        dead = [s for s in candidates if 2 * log.live[s.place] < s.records]
        small = [s for s in candidates if 8 * s.bytes < limits.segment_bytes]
        chosen = dead if dead else small if len(small) >= limits.fold_segments else []
        chosen = first_of(chosen, 2 * limits.segment_bytes)
        if not chosen:
            return None
        keys, positions = newest_in(chosen)
        live = log.index.positions_of(keys) == positions
        keys, positions = keys[live], positions[live]
        order = np.argsort(positions & TOMBSTONE, kind="stable")  # tombstones last
        keys, positions = keys[order], positions[order]
        smallest = RECORD_HEADER_BYTES + ROW_ALIGNMENT_BYTES
        size = max((run[2] for s in chosen for run in s.runs), default=smallest)
        runs = len(np.unique(keys >> KEY_BITS))  # an entry of a run is smaller than a record
        writer = log.new_writer(capacity_for(len(keys) + runs + 2, size, 4096))
        return cls(chosen, keys, positions, writer)

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the live records durably to the new segment."""
        sizes, addresses = places_of(self.segments, self.positions)
        for keys, records in records_of(Stored(self.keys, addresses, sizes)):
            self.writer.reserve(len(keys), records.nbytes // len(keys))
            self.writer.append(keys, records)
            reached("compaction:records")
        self.result = self.writer.seal()
        assert self.result.file is not None
        self.result.file.sync()
        reached("compaction:synced")

    def catalogue(self, contents: Contents) -> Catalogue | None:
        """Return the catalogue with the new segment; None if the old segments are uncommitted."""
        number = self.segments[-1].commit
        if self.result is not None:
            self.result.commit = number
        return self._catalogue(contents) if number else None

    def install(self, contents: Contents) -> Iterator[int]:
        """Make the new segment current, in slices, and remove the segments that it replaces."""
        if not len(self.keys):  # no record was live, so there is no new segment
            self.discard(contents)
            self.result = None
        elif self.result is not None and self.result.commit:
            self.result.close()
        yield from contents.log.replace(self.segments, self.result, self.keys, self.positions)
        paths, maps = [s.path for s in self.segments], [s.map for s in self.segments]
        contents.removal.remove(paths, maps)

    def discard(self, contents: Contents) -> None:
        """Remove the written segment."""
        contents.log.abandon(self.writer)

    def _catalogue(self, contents: Contents) -> Catalogue:
        """Return the catalogue that lists the new segment where the newest old segment was."""
        result = self.result if len(self.keys) else None
        catalogue = contents.catalogue
        merged = {s.number for s in self.segments}
        entries = list(catalogue.segments)
        at = max(i for i, s in enumerate(entries) if s.number in merged)
        if result is not None:
            entry = SegmentEntry(result.number, result.commit, result.bytes, result.checksum)
            entries.insert(at + 1, entry)
        return replace(
            catalogue,
            next_segment=max(catalogue.next_segment, contents.log.next_number),
            segments=tuple(s for s in entries if s.number not in merged),
        )

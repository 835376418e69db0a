"""Merges: the newest records of some segments, written to the base or to one segment.

A **fold** takes the oldest committed segments, none newer than the oldest kept checkpoint, and
writes the newest record of each key into the base. A **compaction** takes segments of which less
than half is still live, or many small ones, and writes the live records to one new segment.

A merge runs on a thread of its own between two steps on the engine thread. `plan` chose the
segments and, for a compaction, the records (live by the index at that moment). `run` reads sealed
segments, which never change, and writes files that nothing names yet. `install` (storage.py) makes
the result current: the catalogue's rename if committed segments are replaced, then index entries
*that still point to the old records*, so whatever happened meanwhile is newer and stays. A crash at
any point leaves either the old files or the new ones named; what is not named is removed at the
next opening, and the merge is done again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.errors import CorruptTableError
from embstore.kernels.cold import ask_for_cold_pages
from embstore.kernels.records import copy_records
from embstore.kernels.row_index import PLACE_BITS
from embstore.storage.base import Base, Written
from embstore.storage.row_index import OFFSET_MASK
from embstore.storage.segment import Segment, SegmentWriter, record_sizes

_CHUNK_BYTES = 8 << 20


@dataclass
class Merge:
    """One merge: what was chosen, and, once it has run, what came of it."""

    segments: list[Segment]  # oldest first
    keys: Keys  # the records to keep, ascending by key
    positions: NDArray[np.int64]
    bases: dict[int, Base] = field(default_factory=dict)  # fold: by table id
    writer: SegmentWriter | None = None  # compaction
    written: dict[int, tuple[Written, str]] = field(default_factory=dict)
    result: Segment | None = None

    @property
    def is_fold(self) -> bool:
        """A fold writes to the base; else it is a compaction."""
        return self.writer is None

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the kept records durably where they go. Any thread; nothing current changes.

        `reached` is told of each stage; what it raises stops the merge.

        Raises
        ------
        CapacityError, StorageError : nothing is lost; the merge may be tried again.
        CorruptTableError : a record is not what was written.
        """
        if self.writer is None:
            self._fold(reached)
        else:
            self._compact(self.writer, reached)

    def _fold(self, reached: Callable[[str], None]) -> None:
        tables = self.keys >> KEY_BITS
        name = f"{self.segments[-1].number:012d}.written"
        for table_id in np.unique(tables).tolist():
            base = self.bases.get(table_id)
            if base is None:
                continue  # Dropped, and no kept checkpoint names it.
            low, high = np.searchsorted(tables, [table_id, table_id + 1]).tolist()
            for keys, records in self._records(low, high):
                base.write(keys & KEY_MASK, records)
                reached("fold:rows")
            keys = self.keys[low:high] & KEY_MASK
            base.sync(int(keys[0]), int(keys[-1]))
            reached("fold:synced")
            self.written[table_id] = base.save_written(keys, f"{base.directory}/{name}")
        reached("fold:written")

    def _compact(self, writer: SegmentWriter, reached: Callable[[str], None]) -> None:
        for keys, records in self._records(0, len(self.keys)):
            writer.reserve(len(keys), records.nbytes // len(keys))
            writer.append(keys, records)
            reached("compaction:records")
        self.result = writer.seal()
        assert self.result.file is not None
        self.result.file.sync()
        reached("compaction:synced")

    def _records(self, low: int, high: int) -> Iterator[tuple[Keys, NDArray[np.uint64]]]:
        """Yield the kept records in [low, high) by pieces of one record size, checked."""
        keys, positions = self.keys[low:high], self.positions[low:high]
        sizes, addresses = self._places(positions)
        cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(keys)]
        for first, end in pairwise(cuts):
            step = max(1, _CHUNK_BYTES // int(sizes[first])) if first < end else 1
            for at in range(first, end, step):
                stop = min(at + step, end)
                yield (
                    keys[at:stop],
                    self._copy(keys[at:stop], addresses[at:stop], int(sizes[first])),
                )

    def _places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        sizes = np.empty(len(positions), np.int64)
        addresses = np.empty(len(positions), np.uint64)
        places = positions >> PLACE_BITS
        for segment in self.segments:
            here = np.flatnonzero(places == segment.place)
            sizes[here] = record_sizes(segment, positions[here])
            offsets = (positions[here] & OFFSET_MASK).astype(np.uint64)
            addresses[here] = np.uint64(segment.map.ctypes.data) + offsets
        return sizes, addresses

    def _copy(self, keys: Keys, addresses: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
        ask_for_cold_pages(addresses, size)
        records = np.empty((len(keys), size // 8), np.uint64)
        wrong = copy_records(addresses, keys, records)
        if wrong >= 0:
            key = int(keys[wrong])
            raise CorruptTableError(
                f"the log's record of table {key >> KEY_BITS}, key {key & KEY_MASK} fails its "
                "checksum"
            )
        return records


def newest(segments: list[Segment]) -> tuple[Keys, NDArray[np.int64]]:
    """Return the keys of some segments, ascending, and where the newest record of each is."""
    parts = [segment.keys_and_positions() for segment in segments]
    keys = np.concatenate([k for k, _ in parts])
    positions = np.concatenate([p for _, p in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.empty(0, bool)
    return keys[last], positions[order[last]]

"""A table's digest, which is maintained by block (contract.md, rule 11).

The digest hashes leaves, one for each block of 256 keys with a written row. Leaves are kept between
digests, together with the set of blocks that were written after the last digest, so that only these
blocks are hashed again. Before the first digest nothing is kept, so that a table without digests
has no cost.

**In slices.** A digest covers the table as of the command at which the digest begins. The rows are
read in slices (slices.py), in the order of their keys, which is the order of the base's files. If a
command changes rows that are still to be read, these rows are copied first (row_snapshot.py). Two
threads read the disk and hash, without the engine. Only one digest runs at a time.

A digest that is ended early does not change the kept leaves, nor the set of blocks to hash again.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import BLOCK_KEYS, leaf_records, leaves, root
from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK, Keys
from embstore.cache.pool import Pool
from embstore.errors import StoreClosedError
from embstore.storage.row_index import add_keys
from embstore.tables.hashing import AHEAD_BYTES, hashing, slice_rows
from embstore.tables.row_snapshot import RowSnapshot, SnapshotRows
from embstore.tables.slices import Slices
from embstore.tables.written_keys import WrittenKeys

_BLOCK_SHIFT = BLOCK_KEYS.bit_length() - 1


class KeySet:
    """A set of non-negative int64, to which keys are added in large batches."""

    def __init__(self) -> None:
        self._keys: Keys = np.full(1 << 10, EMPTY_KEY)
        self._size = 0

    def add(self, keys: Keys, shift: int) -> None:
        """Add key >> shift for each of some keys."""
        if 2 * (self._size + len(keys)) > len(self._keys):
            members = self.members()
            larger = np.full(1 << (4 * (len(members) + len(keys)) - 1).bit_length(), EMPTY_KEY)
            add_keys(larger, members, 0)
            self._keys = larger
        self._size += add_keys(self._keys, keys, shift)

    def members(self) -> Keys:
        """Return the members, ascending."""
        return np.sort(self._keys[self._keys != EMPTY_KEY])


class TableDigest:
    """The leaves of one table. All methods but `compute` are called with the engine."""

    def __init__(self) -> None:
        self._blocks: Keys | None = None  # ascending; None until the first digest
        self._leaves: NDArray[np.uint8] = np.empty((0, 32), np.uint8)
        self._changed = KeySet()
        self.reading: Reading | None = None
        """The rows that the running digest still has to read; None: no digest runs."""

    def note_written(self, keys: Keys) -> None:
        """Remember that these row keys of the table were written."""
        self._changed.add(keys, _BLOCK_SHIFT)

    def begin(self, pool: Pool, table_id: int) -> None:
        """Begin a digest of the table in its present state."""
        pool.followers.download()
        pool.followers.follow(table_id, self.note_written)
        changed = None if self._blocks is None else self._changed.members()
        reading, nothing = Reading(pool, table_id, changed), KeySet()
        self.reading, self._changed = reading, nothing  # both at once, after all allocations

    def compute(self, slices: Slices, identity: bytes, t: int) -> str:
        """Return the digest that was begun, as 64 hexadecimal digits. The blocks that have changed
        since the last digest are hashed. An error from `slices` ends the digest."""
        reading, is_done = self.reading, False
        assert reading is not None
        try:
            changed, fresh = reading.leaves(slices)
            blocks, kept = changed[:0] if self._blocks is None else self._blocks, self._leaves
            others = ~np.isin(blocks, reading.changed, assume_unique=True)
            blocks = np.concatenate([blocks[others], changed])
            order = np.argsort(blocks)
            blocks, kept = blocks[order], np.concatenate([kept[others], fresh])[order]
            is_done = True
        finally:
            with suppress(StoreClosedError), slices.last():
                self.reading = None
                if is_done:
                    self._blocks, self._leaves = blocks, kept
                elif self._blocks is not None:
                    known, self._blocks = self._blocks, None  # in case memory runs out now
                    self._changed.add(reading.changed, 0)
                    self._blocks = known
        return root(identity, t, blocks - reading.first_block, kept)

    def records(self, table_id: int, low: int, count: int) -> bytes:
        """Return the first `count` leaves of blocks >= low, in the form that the root hashes. Call
        this after `compute`, and before the next digest is computed."""
        assert self._blocks is not None
        first_block = (table_id << KEY_BITS) >> _BLOCK_SHIFT
        begin = int(np.searchsorted(self._blocks, first_block + min(low, KEY_MASK)))
        page = slice(begin, begin + count)
        return leaf_records(self._blocks[page] - first_block, self._leaves[page]).tobytes()


class Reading:
    """The rows of one table as they were when this object was made. They are read and hashed block
    by block."""

    def __init__(self, pool: Pool, table_id: int, changed: Keys | None) -> None:
        self.first_block = (table_id << KEY_BITS) >> _BLOCK_SHIFT
        self.changed = np.empty(0, np.int64) if changed is None else changed
        """The blocks to read, ascending; empty if all blocks are to be read."""
        self._is_whole = changed is None
        self._pool = pool
        self._table_id = table_id
        self._next_block = self.first_block  # all lower blocks have been read
        self._aside = RowSnapshot(pool)
        self._deleted: list[Keys] = []

    def preserve(self, keys: Keys, *, are_deleted: bool = False) -> None:
        """Copy the rows of `keys` that the digest still has to read, before a command changes or
        deletes these rows. Call this with the engine."""
        blocks = keys >> _BLOCK_SHIFT
        wanted = blocks >= self._next_block
        if not self._is_whole:
            wanted &= np.isin(blocks, self.changed)
        self._aside.add(keys[wanted])
        if are_deleted:
            self._deleted.append(keys)

    def leaves(self, slices: Slices) -> tuple[Keys, NDArray[np.uint8]]:
        """Return the blocks that had a written row, and the leaf of each of these blocks. Only
        blocks that are to be read are searched."""
        written: WrittenKeys | None = None
        blocks = self.changed
        levels = self._pool, self._pool.level_two
        cached_rows = sum(level.slots.resident_count for level in levels if level is not None)
        rows_asked = self._pool.storage.rows.logged_rows + cached_rows
        if self._is_whole or len(blocks) * BLOCK_KEYS > rows_asked:
            written = WrittenKeys(self._pool, self._table_id, slices.one, self._deleted)
            blocks = written.blocks() if self._is_whole else blocks
        found = np.zeros((len(blocks), 32), np.uint8)
        is_there = np.zeros(len(blocks), bool)
        slices.of = len(blocks)
        with hashing() as submit:
            for part, keys in self._pieces(blocks, written, slices):
                earlier = self._look(keys, blocks[part], slices)
                earlier.looked.ask()
                submit(self._hash, keys, blocks[part], earlier, found[part], is_there[part])
                slices.done = part.stop
        return blocks[is_there], found[is_there]

    def _pieces(
        self, blocks: Keys, written: WrittenKeys | None, slices: Slices
    ) -> Iterator[tuple[slice, Keys]]:
        """Yield the work of each slice: a range of the blocks, and the row keys in these blocks
        that may have written rows."""
        record_bytes = self._pool.layout.record_bytes
        rows_max = slice_rows(self._pool.layout)
        step = max(1, AHEAD_BYTES // (BLOCK_KEYS * record_bytes))
        for first in range(0, len(blocks), step):
            some = blocks[first : first + step]
            if written is None:
                keys = ((some << _BLOCK_SHIFT)[:, None] + np.arange(BLOCK_KEYS)).ravel()
            else:
                keys = written.in_blocks(some)
            starts = np.append(np.searchsorted(keys, some << _BLOCK_SHIFT), len(keys))
            low = 0
            while low < len(some):
                most = max(rows_max >> slices.halvings, 1)
                high = int(np.searchsorted(starts, starts[low] + most))
                high = min(max(high, low + 1), len(some))
                yield slice(first + low, first + high), keys[starts[low] : starts[high]]
                low = high

    def _look(self, keys: Keys, blocks: Keys, slices: Slices) -> SnapshotRows:
        with slices.one():
            earlier = self._aside.look(keys)
            self._next_block = int(blocks[-1]) + 1
            return earlier

    def _hash(
        self,
        keys: Keys,
        blocks: Keys,
        earlier: SnapshotRows,
        found: NDArray[np.uint8],
        is_there: NDArray[np.bool_],
    ) -> None:
        """Read rows, and compute the leaves of the blocks that contain them."""
        rows, was_written = earlier.read()
        keys = keys[was_written]
        cuts = np.append(np.searchsorted(keys, blocks << _BLOCK_SHIFT), len(keys))
        is_there[:] = np.diff(cuts) > 0
        layout = self._pool.layout
        weights, state = np.split(rows[:, : layout.dim + layout.state_dim], [layout.dim], axis=1)
        found[:] = leaves(keys & KEY_MASK, weights, state, cuts.tolist())

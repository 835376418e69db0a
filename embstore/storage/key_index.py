"""The key index of a run: its row keys, and the offset of the record of each key.

The records of a run are in key order. Therefore the position of a key's record follows from the
key's **rank**, which is the number of smaller keys. Keys are divided into groups of 32,768. A group
has one entry in the **directory**, and a container with the set of its keys:

    keys           container                                                        bytes
    all            none                                                             0
    over 2,048     one bit per key, low bit first; then, for every 512 keys,
                   the number of smaller keys in the group (u16)                    4,224
    fewer          each key within its group (u16), ascending                       2 per key

The size of the index depends on the number of rows, and not on the values of their keys. It is 40
bytes per group, and in addition: nothing if a table has all rows; one bit per key if it has most
rows; 2 bytes per key if it has few rows. A lookup reads two or three cache lines of the index, from
the map of the file.

Rejected: an array of the keys (8 bytes per row, and a search in it reads several cold pages); and a
filter in place of the index, with the keys only in the records (then some lookups of missing keys
read the disk in vain).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64RowsIn,
    Int64s,
    Int64sIn,
    Uint16s,
    Uint64s,
    address,
    bit_count,
    building_block,
    carray,
    kernel,
    pointer_at,
)
from embstore.arrays import Keys

GROUP_BITS = 15
GROUP_KEYS = 1 << GROUP_BITS
LIST_MAX = 2048
"""Maximum number of keys of a group that are stored as a list; a longer list would be longer than a
bitmap."""
COLUMNS = 5
_GROUP, _COUNT, SIZE, _START, _PLACE = range(COLUMNS)
_BITMAP_BYTES = GROUP_KEYS // 8
_COUNTED_KEYS = 512
_CONTAINER_BYTES = _BITMAP_BYTES + 2 * GROUP_KEYS // _COUNTED_KEYS


@building_block
def directory_at(directory: int, at: int) -> NDArray[np.int64]:
    """Return an entry of a directory: group, number of keys, record bytes, offset of the first
    record, offset of the container."""
    entry: NDArray[np.int64] = carray(
        pointer_at(directory + at * COLUMNS * 8), (COLUMNS,), np.int64
    )
    return entry


@building_block
def group_at(directory: int, groups: int, group: int) -> int:
    """Return the index of a group's entry in the directory, or of the entry of the first later
    group."""
    entries = carray(pointer_at(directory), (groups, COLUMNS), np.int64)
    guess = group - entries[0, 0]  # right if the directory has all groups in between
    if 0 <= guess < groups and entries[guess, 0] == group:
        return int(guess)
    low, high = 0, groups
    while low < high:
        middle = (low + high) >> 1
        if entries[middle, 0] < group:
            low = middle + 1
        else:
            high = middle
    return low


@building_block
def rank_below(container: int, count: int, offset: int) -> int:
    """Return the number of keys of a group that are smaller than `offset`."""
    if count == GROUP_KEYS:
        return offset
    if count <= LIST_MAX:
        listed = carray(pointer_at(container), (count,), np.uint16)
        low, high = 0, count
        while low < high:
            middle = (low + high) >> 1
            if listed[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low
    words = carray(pointer_at(container), (_BITMAP_BYTES // 8,), np.int64)
    below = carray(pointer_at(container + _BITMAP_BYTES), (GROUP_KEYS // _COUNTED_KEYS,), np.uint16)
    word = offset >> 6
    rank = np.int64(below[word >> 3])
    for i in range(word & ~7, word):
        rank += bit_count(words[i])
    return int(rank + bit_count(words[word] & ((np.int64(1) << (offset & 63)) - 1)))


@building_block
def has_key(container: int, count: int, offset: int, rank: int) -> bool:
    """Return whether a group contains the key `offset`, whose rank is `rank`."""
    if count == GROUP_KEYS:
        return True
    if count <= LIST_MAX:
        listed = carray(pointer_at(container), (count,), np.uint16)
        return bool(rank < count and listed[rank] == offset)
    words = carray(pointer_at(container), (_BITMAP_BYTES // 8,), np.int64)
    return bool((words[offset >> 6] >> (offset & 63)) & 1)


@kernel
def encode(
    keys: Int64sIn,  # (n,) ascending
    firsts: Int64sIn,  # (groups,) the index in keys at which each group begins
    directory: Int64RowsIn,  # (groups, COLUMNS)
    containers: Uint16s,  # zeros
) -> None:
    """Write the container of each group."""
    for g in range(directory.shape[0]):
        count, at = directory[g, 1], directory[g, 4] >> 1
        if count == GROUP_KEYS:
            continue
        if count <= LIST_MAX:
            for i in range(count):
                containers[at + i] = keys[firsts[g] + i] & (GROUP_KEYS - 1)
            continue
        for i in range(count):
            offset = keys[firsts[g] + i] & (GROUP_KEYS - 1)
            containers[at + (offset >> 4)] |= np.uint16(1 << (offset & 15))
        below = 0
        for i in range(GROUP_KEYS // _COUNTED_KEYS):
            containers[at + _BITMAP_BYTES // 2 + i] = below
            for j in range(_COUNTED_KEYS // 16):
                below += bit_count(np.int64(containers[at + i * (_COUNTED_KEYS // 16) + j]))


@kernel
def decode(
    directory: Int64RowsIn,  # (groups, COLUMNS)
    containers: Int,  # address of the containers
    low: Int,  # index of the first group
    high: Int,  # index of the last group, plus one
    keys: Int64s,  # written: the groups' keys
    offsets: Uint64s,  # written: the offset in the file of each key's record
    sizes: Int64s,  # written: the bytes of each key's record
) -> None:
    """Write, in ascending order, the keys of some groups, and the offsets of their records and the
    records' sizes in bytes."""
    at = 0
    for g in range(low, high):
        first, count, container = (
            directory[g, 0] << GROUP_BITS,
            directory[g, 1],
            containers + directory[g, 4],
        )
        for i in range(count):
            offsets[at + i] = directory[g, 3] + i * directory[g, 2]
            sizes[at + i] = directory[g, 2]
        if count == GROUP_KEYS:
            for i in range(count):
                keys[at + i] = first + i
        elif count <= LIST_MAX:
            listed = carray(pointer_at(container), (count,), np.uint16)
            for i in range(count):
                keys[at + i] = first + listed[i]
        else:
            words = carray(pointer_at(container), (_BITMAP_BYTES // 2,), np.uint16)
            i = at
            for word in range(_BITMAP_BYTES // 2):
                bits = np.int64(words[word])
                for bit in range(16):
                    if (bits >> bit) & 1:
                        keys[i] = first + word * 16 + bit
                        i += 1
        at += count


@kernel
def find_offsets(
    directory: Int64RowsIn,
    containers: Int,
    end: Int,  # offset after the last record
    keys: Int64sIn,  # (n,)
    offsets: Int64s,  # (n,)
) -> None:
    """For each of `keys`, write the offset of the first record with an equal or larger key."""
    groups = directory.shape[0]
    for i in range(keys.shape[0]):
        group = keys[i] >> GROUP_BITS
        at = group_at(directory.ctypes.data, groups, group)
        if at == groups:
            offsets[i] = end
        elif directory[at, 0] != group:
            offsets[i] = directory[at, 3]
        else:
            offset = keys[i] & (GROUP_KEYS - 1)
            rank = rank_below(containers + directory[at, 4], directory[at, 1], offset)
            offsets[i] = directory[at, 3] + rank * directory[at, 2]


def container_bytes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes in bytes of the containers of groups that have `counts` keys."""
    lengths = np.where(counts <= LIST_MAX, (2 * counts + 7) & ~7, _CONTAINER_BYTES)
    lengths[counts == GROUP_KEYS] = 0
    return lengths


@dataclass(frozen=True)
class KeyIndex:
    """The keys of one file, and the offsets of their records. Any thread."""

    directory: NDArray[np.int64]  # (groups, COLUMNS)
    containers: NDArray[np.uint16]
    end: int  # offset in the file after the last record

    @classmethod
    def of(cls, keys: Keys, runs: list[tuple[int, int, int]]) -> "KeyIndex":
        """Return the index of ascending row keys. There must be at least one key.

        runs : one tuple (index of the first key, offset of its record, record size in bytes) for
            each sequence of keys whose records have one size
        """
        groups = keys >> GROUP_BITS
        firsts = np.concatenate([[0], np.flatnonzero(groups[1:] != groups[:-1]) + 1])
        counts = np.diff(firsts, append=len(keys))
        lengths = container_bytes(counts)
        begins, offsets, sizes = np.array(runs, np.int64).T
        run = np.searchsorted(begins, firsts, side="right") - 1
        starts = offsets[run] + (firsts - begins[run]) * sizes[run]
        places = np.cumsum(lengths) - lengths
        columns = [groups[firsts], counts, sizes[run], starts, places]
        directory = np.ascontiguousarray(np.stack(columns, axis=1), np.int64)
        containers = np.zeros(int(lengths.sum()) // 2, np.uint16)
        encode(keys, firsts, directory, containers)
        end = int(offsets[-1] + (len(keys) - begins[-1]) * sizes[-1])
        return cls(directory, containers, end)

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self.directory[:, _COUNT].sum())

    def table_bytes(self, key_bits: int) -> dict[int, int]:
        """Return the total size in bytes of each table's records, by table id. The table id is the
        upper bits of a row key."""
        tables = self.directory[:, _GROUP] >> (key_bits - GROUP_BITS)
        ids, inverse = np.unique(tables, return_inverse=True)
        sizes = self.directory[:, _COUNT] * self.directory[:, SIZE]
        return dict(
            zip(ids.tolist(), np.bincount(inverse, sizes).astype(np.int64).tolist(), strict=True)
        )

    def offsets_of(self, keys: Keys) -> NDArray[np.int64]:
        """For each of `keys`, return the offset of the first record with an equal or larger key."""
        offsets = np.empty(len(keys), np.int64)
        find_offsets(self.directory, address(self.containers), self.end, keys, offsets)
        return offsets

    def between(self, low: int, high: int) -> tuple[Keys, NDArray[np.uint64], NDArray[np.int64]]:
        """Return, in ascending order, the row keys in [low, high), and the offsets of their records
        and the records' sizes in bytes."""
        groups = self.directory[:, _GROUP]
        first, last = np.searchsorted(groups, [low >> GROUP_BITS, -(-high >> GROUP_BITS)]).tolist()
        count = int(self.directory[first:last, _COUNT].sum())
        keys, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
        offsets = np.empty(count, np.uint64)
        decode(self.directory, address(self.containers), first, last, keys, offsets, sizes)
        begin, end = np.searchsorted(keys, [low, high])
        return keys[begin:end], offsets[begin:end], sizes[begin:end]

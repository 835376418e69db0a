"""The base: rows that were folded, in runs of records sorted by key. If several runs have a row,
the record in the newest run is valid.

A fold adds a run, and a merge makes one run of several (merges.py); a file is never changed. That
has three consequences. A reader needs no lock: located records stay mapped as long as the reader
refers to the maps, also during merges. After a crash every file that the catalogue does not name is
a leftover. A backup can consist of hard links.

A row is looked up in the runs, newest first. In each run the lookup finds the part whose range
contains the key, then the key's group in the part's index (key_index.py), then the key's rank in
the group. The index shows whether the run has the row, so the disk is read only for rows that
exist. The index also shows whether the row was deleted: a run's tombstones are in a separate run,
whose records contain no row.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64s,
    Int64sIn,
    Uint64s,
    Uint64sIn,
    address,
    building_block,
    kernel,
)
from embstore.arrays import KEY_BITS, Keys
from embstore.layout import RECORD_HEADER_BYTES
from embstore.storage.catalogue import RunEntry
from embstore.storage.files import Files
from embstore.storage.key_index import (
    GROUP_BITS,
    GROUP_KEYS,
    directory_at,
    group_at,
    has_key,
    rank_below,
)
from embstore.storage.run import Part, Run, RunFile

BURIED = np.uint64(1)
"""The value in place of an address if the newest record of the row is a tombstone."""


@building_block
def locate(
    cuts: Int64sIn,  # (runs + 1,) the number of each run's first part, newest run first
    lows: Int64sIn,  # (parts,) the part's keys are in [low, high)
    highs: Int64sIn,
    directories: Int64sIn,  # (parts,) addresses
    groups: Int64sIn,
    containers: Int64sIn,  # addresses
    maps: Uint64sIn,  # addresses
    keys: Int64sIn,  # (n,) row keys
    addresses: Uint64s,  # (n,) only zeros are looked up; written if the base has the row
    low: int,
    high: int,
) -> None:
    """Write the addresses of the records of keys[low:high], for keys whose address is 0.

    The address of a deleted row becomes BURIED; the address of a key that the base does not have
    stays 0. The loop over the keys is in this function, because it takes time to pass the arrays,
    and a call per key would pass them each time.
    """
    for i in range(low, high):
        if addresses[i] != np.uint64(0):
            continue
        key = keys[i]
        group, offset = key >> GROUP_BITS, key & (GROUP_KEYS - 1)
        for run in range(cuts.shape[0] - 1):
            first = cuts[run]
            part = first + np.searchsorted(lows[first : cuts[run + 1]], key, "right") - 1
            if part < first or key >= highs[part]:
                continue
            at = group_at(directories[part], groups[part], group)
            if at == groups[part]:
                continue
            entry = directory_at(directories[part], at)
            if entry[0] != group:
                continue
            container = containers[part] + entry[4]
            rank = rank_below(container, entry[1], offset)
            if has_key(container, entry[1], offset, rank):
                if entry[2] == RECORD_HEADER_BYTES:
                    addresses[i] = BURIED
                else:
                    addresses[i] = maps[part] + np.uint64(entry[3] + rank * entry[2])
                break


@kernel
def find_rows(
    cuts: Int64sIn,  # this and the next six: as for `locate`
    lows: Int64sIn,
    highs: Int64sIn,
    directories: Int64sIn,
    groups: Int64sIn,
    containers: Int64sIn,
    maps: Uint64sIn,
    keys: Int64sIn,  # (n,) row keys
    addresses: Uint64s,  # (n,) zeros; written as by `locate`
) -> None:
    """Call `locate` for all keys."""
    base = cuts, lows, highs, directories, groups, containers, maps
    locate(*base, keys, addresses, 0, keys.shape[0])


@kernel
def list_keys(
    blocks: Int64sIn,  # (n,) ascending: row key >> shift
    shift: Int,  # at most GROUP_BITS
    cuts: Int64sIn,  # this and the next five: as for `locate`
    lows: Int64sIn,
    highs: Int64sIn,
    directories: Int64sIn,
    groups: Int64sIn,
    containers: Int64sIn,
    found: Int64s,  # written: the keys of each run, block by block
) -> int:
    """Write the row keys that the runs have in some blocks (row key >> shift), and return how many
    were written. A key is written once for each run that has it."""
    count = 0
    for block in blocks:
        for run in range(cuts.shape[0] - 1):
            part = cuts[run] + np.searchsorted(
                highs[cuts[run] : cuts[run + 1]], block << shift, "right"
            )
            while part < cuts[run + 1] and lows[part] < (block + 1) << shift:
                low = max(block << shift, lows[part])
                high = min((block + 1) << shift, highs[part])
                group = low >> GROUP_BITS
                at = group_at(directories[part], groups[part], group)
                if at < groups[part]:
                    entry = directory_at(directories[part], at)
                    if entry[0] == group:
                        container = containers[part] + entry[4]
                        first = group << GROUP_BITS
                        rank = rank_below(container, entry[1], low - first)
                        for key in range(low, high):
                            if has_key(container, entry[1], key - first, rank):
                                found[count] = key
                                count += 1
                                rank += 1
                part += 1
    return count


Arrays = tuple[Keys, Keys, Keys, Keys, Keys, Keys, NDArray[np.uint64]]
"""The first arguments of `locate`."""


def arrays_of(runs: Sequence[Run]) -> Arrays:
    """Return the arrays by which `locate` finds the rows of some runs. The runs are given oldest
    first. The arrays are valid while the runs' files are mapped."""
    parts = [part for run in reversed(runs) for part in run]
    sizes = [len(run) for run in reversed(runs)]
    indexes = [part.file.index for part in parts]
    return (
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.array([part.entry.low for part in parts], np.int64),
        np.array([part.entry.high for part in parts], np.int64),
        np.array([address(index.directory) for index in indexes], np.int64),
        np.array([len(index.directory) for index in indexes], np.int64),
        np.array([address(index.containers) for index in indexes], np.int64),
        np.array([part.file.map.ctypes.data for part in parts], np.uint64),
    )


def have_rows(runs: Sequence[Run], keys: Keys) -> NDArray[np.bool_]:
    """Return whether each row key has a row in some runs, (n,) bool. The runs are given oldest
    first; the result is False for a row that a tombstone in these runs hides. Any thread."""
    addresses = np.zeros(len(keys), np.uint64)
    find_rows(*arrays_of(runs), keys, addresses)
    found: NDArray[np.bool_] = addresses > BURIED
    return found


class Base:
    """The runs of a store. Engine thread only, but the thread of a merge also reads the files.

    arrays : the first arguments of `locate`
    """

    def __init__(self, files: Files, store_id: bytes) -> None:
        self.runs: tuple[Run, ...] = ()  # oldest first
        self.maps: tuple[NDArray[np.uint8], ...] = ()
        self._files = files
        self._store_id = store_id
        self._by_path: dict[str, RunFile] = {}
        self.use(())

    @property
    def bytes(self) -> int:
        """Bytes of the base's files."""
        return sum(file.map.nbytes for file in self._by_path.values())

    def table_ids(self) -> Keys:
        """Return the ids of the tables that have rows, ascending."""
        return np.array(
            sorted({i for f in self._by_path.values() for i in f.table_bytes}), np.int64
        )

    def open(self, entries: tuple[RunEntry, ...]) -> tuple[Run, ...]:
        """Map the files of a catalogue's runs, except the files that are already mapped; return the
        runs."""
        opened = dict(self._by_path)
        runs = []
        for run in entries:
            for entry in run:
                if entry.path not in opened:
                    opened[entry.path] = RunFile.open(self._files, self._store_id, entry)
            runs.append(tuple(Part(entry, opened[entry.path]) for entry in run))
        return tuple(runs)

    def use(self, runs: tuple[Run, ...]) -> None:
        """Make opened runs the current runs."""
        self.runs = runs
        self._by_path = {part.entry.path: part.file for run in runs for part in run}
        self.maps = tuple(file.map for file in self._by_path.values())
        self.arrays = arrays_of(runs)

    def blocks(self, table_id: int, shift: int) -> Keys:
        """Return, in ascending order, the blocks (row key >> shift) in which a table has a row."""
        first, end = table_id << KEY_BITS, (table_id + 1) << KEY_BITS
        found = [np.empty(0, np.int64)]
        for part in (part for run in self.runs for part in run):
            low, high = max(part.entry.low, first), min(part.entry.high, end)
            if low < high:
                blocks = part.file.index.between(low, high)[0] >> shift
                found.append(blocks[np.diff(blocks, prepend=-1) != 0])
        return np.unique(np.concatenate(found))

    def keys_in(self, blocks: Keys, shift: int) -> Keys:
        """Return, in ascending order, the row keys in some blocks (row key >> shift, at most 15).
        The blocks are given in ascending order."""
        found = np.empty(len(self.runs) * len(blocks) << shift, np.int64)
        keys: Keys = found[: list_keys(blocks, shift, *self.arrays[:6], found)]
        return np.unique(keys) if len(self.runs) > 1 else keys

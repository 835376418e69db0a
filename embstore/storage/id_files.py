"""Row numbers of sparse tables on the disk: the id of each number, in files that never change.

    header page | id id ...

A file contains the ids of consecutive row numbers of one table. The catalogue names the file, and
contains the checksum of its ids. A commit writes a file for the numbers that were assigned since
the last commit, and syncs the file before the catalogue's rename. Therefore, if rows are lost by a
crash, their numbers are forgotten, and a restore forgets the numbers that were assigned after the
checkpoint. The next new ids get the forgotten numbers.

**Few files.** A commit also joins small files: from memory it writes one file that replaces several
consecutive files, all between the same two kept checkpoints. Afterwards, of any two neighbouring
files, the first has more than twice as many ids as the second, so that an id is written O(log)
times. A file with JOINED_MAX ids is not joined any more, so that no commit takes long. 200 million
ids take some hundred files.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from typing import NamedTuple

import numpy as np

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.errors import CorruptTableError
from embstore.results import TableEntry
from embstore.storage.catalogue import Catalogue, IdsEntry
from embstore.storage.files import File, Files
from embstore.storage.format import (
    IDS_MAGIC,
    PAGE_BYTES,
    checksum,
    pack_header,
    unpack_header,
)
from embstore.storage.row_numbers import RowNumbers

JOINED_MAX = 1 << 21
"""Maximum number of ids in a file, 16 MiB."""
_ID_BYTES = 8


def check_ids_header(file: File, store_id: bytes, entry: IdsEntry) -> None:
    """Check that a file's header is that of the file `entry` of this store."""
    found = unpack_header(file.read(0, PAGE_BYTES), IDS_MAGIC, store_id, file.path)
    if found != (entry.number, entry.table_id, entry.first):
        raise CorruptTableError(f"{file.path}: the header is that of other ids")


def read_ids(file: File, entry: IdsEntry) -> Keys:
    """Return the ids of a file after checking its size and checksum against the catalogue."""
    size = PAGE_BYTES + _ID_BYTES * entry.count
    if file.size != size or entry.bytes != size:
        raise CorruptTableError(
            f"{file.path}: expected {entry.bytes} bytes, {entry.count} ids, found {file.size}"
        )
    content = file.read(PAGE_BYTES, size - PAGE_BYTES)
    if checksum(content) != entry.checksum:
        raise CorruptTableError(f"{file.path}: the ids' checksum does not match")
    return np.frombuffer(content, np.int64)


def open_ids(files: Files, store_id: bytes, entry: IdsEntry) -> Keys:
    """Return the ids of a file after checking its header, size and checksum."""
    if not files.exists(entry.path):
        raise CorruptTableError(f"{entry.path}: expected {entry.count} ids, found no file")
    with closing(files.open(entry.path)) as file:
        check_ids_header(file, store_id, entry)
        return read_ids(file, entry)


def id_at(files: Files, entry: IdsEntry, number: int) -> int:
    """Return the unsigned id of a row number, which must be in the file. The file's checksum is not
    checked."""
    with closing(files.open(entry.path)) as file:
        content = file.read(PAGE_BYTES + _ID_BYTES * (number - entry.first), _ID_BYTES)
    return int.from_bytes(content, "little")


class Range(NamedTuple):
    """A range of row numbers of one table that one file is to contain. `entry` is that file if it
    has already been written, else None."""

    first: int
    numbers: int
    commit: int
    entry: IdsEntry | None


class Ids:
    """The row numbers of a store's sparse tables, and the files of their ids. Engine thread only.

    new_number : returns the number of the next file
    tables : the row numbers of the sparse tables that the store has at present, by table id
    """

    def __init__(self, files: Files, store_id: bytes, new_number: Callable[[], int]) -> None:
        self.tables: dict[int, RowNumbers] = {}
        self._files = files
        self._store_id = store_id
        self._new_number = new_number
        self._written: dict[tuple[int, int, int, int], IdsEntry] = {}
        """Files that were written and that no catalogue names yet, by table id, first row number,
        count and commit."""

    @property
    def count(self) -> int:
        """Number of ids that have row numbers."""
        return sum(numbers.count for numbers in self.tables.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that the row numbers and ids take."""
        return sum(numbers.memory_bytes for numbers in self.tables.values())

    def load(self, catalogue: Catalogue) -> None:
        """Read the ids in all files that a catalogue names, and give the ids of the head's tables
        their row numbers.

        Raises
        ------
        CorruptTableError : a file is damaged, or the ids between two files are missing.
        """
        for table in catalogue.head.tables:
            self.create(table)
        for table_id, group in groupby(catalogue.ids, lambda entry: entry.table_id):
            self._load_table(self.tables.get(table_id), list(group))

    def _load_table(self, numbers: RowNumbers | None, entries: Sequence[IdsEntry]) -> None:
        end = 0
        if numbers is not None:
            numbers.make_room(sum(entry.count for entry in entries))
        for entry in entries:
            if entry.first != end:
                raise CorruptTableError(
                    f"{entry.path}: expected the ids from row {end} on of table {entry.table_id}, "
                    f"found those from {entry.first} on"
                )
            end += entry.count
            ids = open_ids(self._files, self._store_id, entry)
            if numbers is not None:
                numbers.add(ids)

    def create(self, table: TableEntry) -> None:
        """Prepare for the ids of a new table, if its keys are sparse."""
        if table.identity["key_space"] == "sparse":
            self.tables[table.table_id] = RowNumbers(table.table_id)

    def drop(self, table_id: int) -> None:
        """Forget the ids of a table. Reads in progress continue undisturbed."""
        self.tables.pop(table_id, None)

    def id_of(self, row_key: int) -> int | None:
        """Return the id, unsigned, of a row of a sparse table; None if the id is not known."""
        numbers, number = self.tables.get(row_key >> KEY_BITS), row_key & KEY_MASK
        if numbers is None or number >= numbers.count:
            return None
        return int(numbers.ids_of(np.array([number]))[0]) % (1 << 64)

    # Commits

    def entries(self, catalogue: Catalogue) -> tuple[IdsEntry, ...]:
        """Return the next catalogue's entries for files of ids. `catalogue` has the head and the
        checkpoints that the next catalogue will have. Files that do not exist yet are written, but
        not synced.

        Raises CapacityError if there is not enough space; nothing has changed then.
        """
        heads = catalogue.head.table_ids & self.tables.keys()
        found = [entry for entry in catalogue.ids if entry.table_id not in heads]
        for table_id in heads:
            numbers = self.tables[table_id]
            ranges = self._ranges(numbers, catalogue)
            found += [
                entry or self._write(numbers, first, count, commit)
                for first, count, commit, entry in ranges
            ]
        return tuple(sorted(found, key=lambda entry: (entry.table_id, entry.first)))

    def _ranges(self, numbers: RowNumbers, catalogue: Catalogue) -> list[Range]:
        """Return the ranges of row numbers that the files of a table are to contain, one per
        file."""
        own = [entry for entry in catalogue.ids if entry.table_id == numbers.table_id]
        ranges = [Range(entry.first, entry.count, entry.commit, entry) for entry in own]
        begin, commit = sum(entry.count for entry in own), catalogue.head.commit
        ranges += [
            Range(first, min(JOINED_MAX, numbers.count - first), commit, None)
            for first in range(begin, numbers.count, JOINED_MAX)
        ]
        return joined(ranges, catalogue.interval)

    def _write(self, numbers: RowNumbers, first: int, count: int, commit: int) -> IdsEntry:
        key = numbers.table_id, first, count, commit
        if key in self._written:  # written for a commit that then had no space for its catalogue
            return self._written[key]
        ids = numbers.first_ids(first, first + count)
        self._files.make_directory("ids")
        entry = IdsEntry(
            number=self._new_number(),
            table_id=numbers.table_id,
            first=first,
            count=count,
            commit=commit,
            bytes=PAGE_BYTES + ids.nbytes,
            checksum=checksum(ids.data),
        )
        header = pack_header(IDS_MAGIC, self._store_id, entry.number, entry.table_id, first)
        try:
            with closing(self._files.create(entry.path)) as file:
                file.write(0, header)
                file.write(PAGE_BYTES, ids.data)
        except BaseException:
            self._files.discard(entry.path)
            raise
        self._written[key] = entry
        return entry

    def sync(self) -> None:
        """Return once all written files are on the disk."""
        for entry in self._written.values():
            with closing(self._files.open(entry.path)) as file:
                file.sync()
        if self._written:
            self._files.sync_directory("ids")

    def mark_committed(self, catalogue: Catalogue) -> None:
        """Record that a commit has named the written files; remove the written files that the
        commit does not name."""
        for entry in self._written.values():
            if entry not in catalogue.ids:
                self._files.discard(entry.path)
        self._written.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError if a row number is not found by its id."""
        for numbers in self.tables.values():
            numbers.check_integrity()


def joined(ranges: Sequence[Range], interval: Callable[[int], int]) -> list[Range]:
    """Return consecutive ranges after joining small ones between the same two checkpoints.

    interval : returns the number of checkpoints that are older than a commit
    """
    found: list[Range] = []
    for new in ranges:
        found.append(new)
        while len(found) > 1:
            one, next_one = found[-2:]
            count = one.numbers + next_one.numbers
            if (
                one.numbers > 2 * next_one.numbers
                or count > JOINED_MAX
                or interval(one.commit) != interval(next_one.commit)
            ):
                break
            found[-2:] = [Range(one.first, count, next_one.commit, None)]
    return found

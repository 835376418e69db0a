"""Backups: copies of a store's state at other destinations, and directories made of such copies.

A backup consists of the files of the store, under the same names:

    EMBSTORE-BACKUPS        the marker with the store's id, made first (markers.py)
    labels/NAME.catalogue   the catalogue of the store as of a label; NAME is the label, quoted
    labels/HASH-N.shard     for a shard of a cluster: its file SHARD; HASH is the hash of the label,
                            N is the command number
    labels/HASH-N.lineage   for a store with promotions: the promotions, as in its file LINEAGE
    log/N.log, base/N-P.rows, ids/N.ids   the files that these catalogues name; several catalogues
                            can name the same file

Such files never change, and no name is used twice in the life of a store. Therefore a second backup
copies only files that no other label's backup contains. Catalogues are written last. A catalogue is
either whole or has a wrong checksum, so an interrupted backup is never mistaken for a complete one.
After a catalogue was removed, the next backup removes the files that no catalogue names any more.
It removes only files whose names have the form of a store's file names (own_names.py).

**While the store continues to run**, merges replace files. Therefore the files of a backup get
second names in the store's own directory (`backup/`, hard links). The engine waits until all files
are linked, which takes some microseconds per file. The second names are removed when the backup
ends, or, after a crash, when the store is opened. Rejected: a list of files that merges must not
remove. All code that removes files would have to read that list, and the list would have to survive
a crash.

**A restored directory** becomes a store when its last file, store.json, is written; before that it
does not open. The restore begins with an empty store.json.new. This file shows an interrupted
restore: the next restore removes the partial copy and begins anew. The new store begins an epoch
that the original store never had (the time, in seconds), so that clients of the original are not
taken for clients of the new store. The file numbers of the new store begin at a number that the
original has not reached. Therefore both stores can make backups at one destination, and a standby
does not mistake a file of one store for a file of the other. If the new store gets another id, the
header page of each file is rewritten; records do not contain the id. The backup of a shard becomes
the same shard again, with its map: all shards of a cluster are restored together
(`embstore.storage.cluster_backups`).
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from urllib.parse import quote, unquote

from embstore.errors import (
    CheckpointNotFoundError,
    CorruptTableError,
    InvalidArgumentError,
    StorageError,
    TableMismatchError,
)
from embstore.results import EPOCH_STEP, BackupFacts
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage import markers
from embstore.storage import shard as shards
from embstore.storage.catalogue import Catalogue, Entry, IdsEntry, PartEntry
from embstore.storage.checking import UNUSABLE
from embstore.storage.contents import IDENTITY, LINKS, LOCK, write_identity
from embstore.storage.destinations import Destination, DirectoryDestination, Look
from embstore.storage.files import Files
from embstore.storage.format import BASE_MAGIC, IDS_MAGIC, LOG_MAGIC, ROOMS, pack_header
from embstore.storage.lineage import Lineage
from embstore.storage.lives import up_to
from embstore.storage.own_names import is_own
from embstore.storage.shard import ShardPlace
from embstore.storage.states import KeptState
from embstore.storage.verify import Verification, entries_of, verify_files

_LABELS, _SUFFIX = "labels", ".catalogue"
_PLACE, _LINEAGE = ".shard", ".lineage"
_BEGUN = f"{IDENTITY}.new"
"""The file of an unfinished restore; the last step of a restore renames it to store.json."""
_SKIPPED_NUMBERS = 1 << 20
"""Number of file numbers that a restored store skips. The original store cannot have used as many
since the backup, so no file that one store makes from then on has the name of a file of the other
store."""
_NAME_BYTES_MAX = 240
_PROBLEMS_MAX = 5
"""Maximum number of problems that an error message shows."""

Progress = Callable[[int, int], None]


def catalogue_of(catalogue: Catalogue, checkpoint: KeptState | None) -> Catalogue:
    """Return the catalogue of a backup of `checkpoint`; None: of a backup of the head."""
    state = checkpoint or KeptState("", {}, catalogue.head)
    command = state.state.command
    lives = up_to(catalogue.lives, command)
    restored = catalogue.restored(state, command, lives).without_dropped()
    return replace(restored, commands=None)


def make_room(files: Files) -> None:
    """Make an empty directory for the second names of files."""
    files.remove_directory(LINKS)
    files.make_directory(LINKS)


@contextmanager
def linked(files: Files, catalogue: Catalogue) -> Iterator[Callable[[str], str]]:
    """Give the files of a catalogue second names; yield the function that returns the second name
    of a path.

    The caller has the engine, so this function must be fast. Therefore the caller must have made
    the directory before (`make_room`), which waits for the disk.
    """

    def name(path: str) -> str:
        return f"{LINKS}/{path.replace('/', '-')}"

    try:
        for entry in entries_of(catalogue):
            files.link(files, entry.path, name(entry.path))
        yield name
    finally:
        files.discard(LINKS, directory=True)


def back_up(
    files: Files,
    name: Callable[[str], str],
    catalogue: Catalogue,
    label: str,
    to: Destination,
    progress: Progress,
) -> BackupFacts:
    """Copy the files of a catalogue, and then the catalogue, to a destination of backups.

    Parameters
    ----------
    name : a function that returns the path in `files` of a file that the catalogue names
    label : label of the backup; an existing backup of this label is replaced
    progress : called with the bytes copied so far and the total; an exception ends the backup

    Raises
    ------
    InvalidArgumentError : the destination has another file of the same name: a damaged file, or a
        file of a copy of this store that has continued independently.
    CapacityError, StorageError : the existing backups are unchanged.
    """
    own = _path_of_label(label)
    others, unreadable = _backups(to)
    named = {entry.path for entry in entries_of(*others.values())}
    entries = entries_of(catalogue)
    total = sum(entry.bytes for entry in entries)
    done = new_files = new_bytes = 0
    for entry in entries:
        progress(done, total)
        path = entry.path
        if not to.has_same(path, files, name(path)):
            if path in named:
                raise InvalidArgumentError(
                    f"expected {path} of this store, found another file of that name, which is "
                    "damaged, or was written by a copy of this store; choose another destination"
                )
            to.put(path, files, name(path), _looking(progress, done, total))
            new_files, new_bytes = new_files + 1, new_bytes + entry.bytes
        done += entry.bytes
    progress(done, total)
    if (place := shards.read(files)) is not None:
        to.replace(_path_of(label, catalogue, _PLACE), shards.encode(place.resumed("")))
    if promotions := lineages.read(files).promotions:
        path = _path_of(label, catalogue, _LINEAGE)
        to.replace(path, lineages.encode(Lineage(promotions)))
    to.replace(own, catalogues.encode(catalogue))
    if not unreadable:
        _remove_unnamed(to, others | {label: catalogue})
    return BackupFacts(label, catalogue.head.command, len(entries), total, new_files, new_bytes)


def verify_backups(files: Files, note: Callable[[str], None], progress: Progress) -> Verification:
    """Check all backups in a directory, as `verify` checks a store."""
    backups, unreadable = _backups(DirectoryDestination(files))
    unreadable = [*_wrong_of_marker(files, backups), *unreadable]
    for problem in unreadable:
        note(problem)
    if backups:
        found = verify_files(files, backups, note, progress)
        here = [f"{folder}/{name}" for folder in ROOMS for name in files.list(folder)]
        named = {entry.path for entry in entries_of(*backups.values())}
        found.leftovers = [path for path in here if path not in named]
    else:
        found = Verification()
    found.problems = [*unreadable, *found.problems]
    return found


def _wrong_of_marker(files: Files, backups: dict[str, Catalogue]) -> Iterator[str]:
    try:
        store_id = markers.decode(files.read_all(markers.PATH))
    except UNUSABLE as exc:
        yield f"{exc}: no further backup can be made here, but these can be restored"
        return
    for label, backup in backups.items():
        if backup.store_id != store_id:
            yield (
                f"{_path_of_label(label)}: expected a backup of store {store_id}, as "
                f"{markers.PATH} says, found one of {backup.store_id}"
            )


def restore_from(
    source: Destination,
    target: Files,
    label: str | None,
    store_id: str | None,
    progress: Progress,
) -> Catalogue:
    """Make a directory the store that was backed up; return its catalogue. See `restoring`."""
    with restoring(source, target, label, store_id, progress) as made:
        return made


@contextmanager
def restoring(
    source: Destination,
    target: Files,
    label: str | None,
    store_id: str | None,
    progress: Progress,
) -> Iterator[Catalogue]:
    """Make a directory the store that was backed up; yield its catalogue. The directory is locked
    until the block ends. After an error, including an error in the block, the directory is as it
    was before.

    Parameters
    ----------
    label : label of the backup; None: the newest backup, which has the highest command number of
        the latest epoch
    store_id : id of the new store; None: the id in the backup
    progress : called with the bytes done so far and the total

    Raises
    ------
    CheckpointNotFoundError : there is no backup of this label.
    InvalidArgumentError : the directory is not empty.
    CorruptTableError : a file is damaged.
    """
    label, backup = _chosen(source, label)
    place = place_of(source, label, backup)
    check_empty(target)
    # Higher than all present epochs, and different for each restore even if the clock was set back.
    epoch = max(backup.epoch, int(time.time())) + 1 + secrets.randbelow(EPOCH_STEP // 2)
    restored = replace(
        backup,
        epoch=epoch,
        store_id=store_id or backup.store_id,
        next_segment=backup.next_segment + _SKIPPED_NUMBERS,
    )
    lineage = None if store_id else _read(source, _path_of(label, backup, _LINEAGE))
    with target.made(), _locked(target):
        check_empty(target)  # now that no other process restores into it
        try:
            _begin(target)
            _fetch_all(source, target, restored, store_id is not None, progress)
            if place is not None:
                shards.write(target, place)
            if lineage is not None:
                target.replace(lineages.PATH, lineage)
            target.replace(catalogues.PATH, catalogues.encode(restored))
            target.reached("restore:fetched")
            write_identity(target, restored.store_id)
            yield restored
        except BaseException:
            _remove_all(target)
            raise


@contextmanager
def _locked(target: Files) -> Iterator[None]:
    """Lock a directory. If the block fails, remove the lock file, unless it existed before."""
    was_there = target.exists(LOCK)
    with closing(target.lock(LOCK, shared=False)):
        try:
            yield
        except BaseException:
            if not was_there:
                target.discard(LOCK)
            raise


def check_empty(target: Files) -> None:
    """Raise InvalidArgumentError if a directory contains anything except leftovers of an
    interrupted restore. The directory need not exist."""
    names = set(target.list("")) - {LOCK, "lost+found"}
    if names and (_BEGUN not in names or IDENTITY in names):
        raise InvalidArgumentError(
            f"expected an empty directory, or none yet, found files in {target.root}"
        )


def _begin(target: Files) -> None:
    """Make the file that marks a restore as begun, after removing what an interrupted restore has
    left."""
    _remove_all(target)
    with closing(target.create(_BEGUN)) as file:
        file.sync()
    target.sync_directory("")


def _fetch_all(
    source: Destination, target: Files, restored: Catalogue, has_new_id: bool, progress: Progress
) -> None:
    entries = entries_of(restored)
    total = 2 * sum(entry.bytes for entry in entries)  # fetched, then verified
    done = 0
    for entry in entries:
        look: Look = _looking(progress, done, total)
        look()
        page = _header(entry, bytes.fromhex(restored.store_id)) if has_new_id else None
        source.fetch(entry.path, target, page, look)
        done += entry.bytes
    for folder in ROOMS:
        if target.exists(folder):
            target.sync_directory(folder)
    found = verify_files(
        target, {"": restored}, lambda problem: None, lambda read, _: progress(done + read, total)
    )
    if found.problems:
        first = "; ".join(found.problems[:_PROBLEMS_MAX])
        raise CorruptTableError(f"the backup is damaged: {first}")


def _looking(progress: Progress, done: int, total: int) -> Look:
    return lambda: progress(done, total)


def _header(entry: Entry, store_id: bytes) -> bytes:
    if isinstance(entry, PartEntry):
        return pack_header(BASE_MAGIC, store_id, entry.number, entry.part)
    if isinstance(entry, IdsEntry):
        return pack_header(IDS_MAGIC, store_id, entry.number, entry.table_id, entry.first)
    return pack_header(LOG_MAGIC, store_id, entry.number)


def _remove_all(target: Files) -> None:
    """Delete the partial copy: store.json first, and last the mark that a restore was begun."""
    for path in (IDENTITY, catalogues.PATH, shards.PATH, lineages.PATH):
        target.discard(path)
    for path in (catalogues.PATH, shards.PATH, lineages.PATH):
        target.discard(f"{path}.new")
    for folder in ROOMS:
        target.discard(folder, directory=True)
    target.discard(_BEGUN)


def _chosen(source: Destination, label: str | None) -> tuple[str, Catalogue]:
    found = backups_in(source)
    if label is None and found:
        return max(found.items(), key=lambda backup: newest_last(backup[1]))
    if label is None or label not in found:
        if not found:
            raise CheckpointNotFoundError(
                "expected backups, found none there: give the folder that `embstore backup DEST` "
                "made, below the server's --backup-within"
            )
        there = ", ".join(map(repr, sorted(found)))
        raise CheckpointNotFoundError(f"expected a backup of label {label!r}, found: {there}")
    return label, found[label]


def newest_last(backup: Catalogue) -> tuple[int, int]:
    """Return the key by which backups are sorted, oldest first: the epoch, then the command number.
    A restored store has a later epoch, so its backups are newer than the backups of the history
    that the restore has given up, whatever the command numbers are."""
    return backup.epoch, backup.head.command


def backups_in(source: Destination) -> dict[str, Catalogue]:
    """Return the catalogues of the complete backups, by label."""
    return _backups(source)[0]


def place_of(source: Destination, label: str, backup: Catalogue) -> ShardPlace | None:
    """Return the number and map of the shard that was backed up; None: the store was no shard."""
    path = _path_of(label, backup, _PLACE)
    content = _read(source, path)
    return None if content is None else shards.decode(content, path)


def _read(source: Destination, path: str) -> bytes | None:
    """Return the content of a small file in `labels`; None: there is no such file."""
    is_there = path.rpartition("/")[2] in source.list(_LABELS)
    return source.read_all(path) if is_there else None


def _backups(source: Destination) -> tuple[dict[str, Catalogue], list[str]]:
    """Return the backups by label, and the reasons why other catalogue files cannot be read."""
    found, unreadable = {}, []
    for name in source.list(_LABELS):
        if name.endswith(_SUFFIX):
            try:
                content = source.read_all(f"{_LABELS}/{name}")
                found[unquote(name.removesuffix(_SUFFIX))] = catalogues.decode(content)
            except (CorruptTableError, TableMismatchError) as exc:
                unreadable.append(f"{_LABELS}/{name}: {exc}")  # cut off, or of another version
    return found, unreadable


def _path_of_label(label: str) -> str:
    name = quote(label, safe="")
    if len(name) > _NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"expected a label that is at most {_NAME_BYTES_MAX} bytes as a file name, found "
            f"{len(name)}: {label[:80]!r}"
        )
    return f"{_LABELS}/{name}{_SUFFIX}"


def _path_of(label: str, backup: Catalogue, suffix: str) -> str:
    """Return the path of a backup's file SHARD or LINEAGE. Another backup of the same label has
    another path, so that an interruption between the writes of this file and of the catalogue
    damages neither backup."""
    name = hashlib.blake2b(label.encode(), digest_size=8).hexdigest()
    return f"{_LABELS}/{name}-{backup.head.command}{suffix}"


def _remove_unnamed(source: Destination, backups: dict[str, Catalogue]) -> None:
    """Remove the store's files that no backup names. Errors are ignored: the backup is complete."""
    here = {f"{room}/{name}" for room in (*ROOMS, _LABELS) for name in source.list(room)}
    named = {entry.path for entry in entries_of(*backups.values())}
    for suffix in (_PLACE, _LINEAGE):
        named |= {_path_of(label, backup, suffix) for label, backup in backups.items()}
    for path in sorted(filter(is_own, here - named)):
        with suppress(StorageError):
            source.remove(path)

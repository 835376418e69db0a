"""Opening a directory: whose it is, of which format, and what it last committed.

A directory becomes a store in this order, each step durable before the next: the lock file,
store.json, the first catalogue. So a store.json without a catalogue is a creation that was cut
short, if there is nothing else; with other files it is a store that has lost its catalogue.
"""

import json
import uuid

from embstore.config import Limits
from embstore.errors import (
    CorruptTableError,
    InvalidArgumentError,
    StorageError,
    TableMismatchError,
)
from embstore.storage import catalogue as catalogues
from embstore.storage.catalogue import Catalogue
from embstore.storage.files import File, Files
from embstore.storage.format import FORMAT

_IDENTITY = "store.json"
_UNFINISHED = {"LOCK", f"{_IDENTITY}.new", "lost+found"}


def lock_directory(files: Files, *, read_only: bool) -> File:
    """Make the directory a store if it is empty, and lock it until the returned file is closed.

    Raises
    ------
    StoreInUseError : another store holds it.
    StorageError : read-only, and there is no store.
    InvalidArgumentError : the directory holds something else.
    """
    if files.exists("") and not files.is_directory(""):
        raise InvalidArgumentError(f"expected a directory, found a file: {files.root}")
    if not files.exists(_IDENTITY):
        if read_only:
            raise StorageError(2, f"expected a store to read, found none in {files.root}")
        # In this order: another process may be making the store, store.json before the rest.
        if set(files.list("")) - _UNFINISHED and not files.exists(_IDENTITY):
            raise InvalidArgumentError(
                f"expected an empty directory or a store, found other files in {files.root}"
            )
        files.make_directory("")
    lock = files.lock("LOCK", shared=read_only)
    try:
        if not files.exists(_IDENTITY):
            identity = {"format": FORMAT, "endianness": "little", "store_id": uuid.uuid4().hex}
            files.replace(_IDENTITY, json.dumps(identity).encode() + b"\n")
    except BaseException:
        lock.close()
        raise
    return lock


def read_catalogue(files: Files, *, read_only: bool, limits: Limits) -> Catalogue:
    """Return what was last committed; write the first catalogue of a new store.

    Raises
    ------
    TableMismatchError : another format or byte order.
    CorruptTableError : store.json or the catalogue is missing, or not as it was written.
    """
    store_id = _read_store_id(files)
    if files.exists(catalogues.PATH):
        catalogue = catalogues.decode(files.read_all(catalogues.PATH))
    elif files.exists("log") or files.exists("base") or read_only:
        raise CorruptTableError(f"{catalogues.PATH}: missing from {files.root}")
    else:
        catalogue = Catalogue(store_id, base_segment_bytes=limits.base_segment_bytes)
        files.replace(catalogues.PATH, catalogues.encode(catalogue))
    if catalogue.store_id != store_id:
        raise CorruptTableError(
            f"{catalogues.PATH}: belongs to store {catalogue.store_id}, not to {store_id}"
        )
    return catalogues.reopened(catalogue)


def _read_store_id(files: Files) -> str:
    try:
        identity = json.loads(files.read_all(_IDENTITY))
        found = (identity["format"], identity["endianness"])
        store_id = bytes.fromhex(identity["store_id"]).hex()
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise CorruptTableError(f"{_IDENTITY}: unreadable") from exc
    if found != (FORMAT, "little"):
        raise TableMismatchError(
            f"{_IDENTITY}: expected format {FORMAT}, little-endian, "
            f"found format {found[0]}, {found[1]}"
        )
    if len(store_id) != 32:
        raise CorruptTableError(
            f"{_IDENTITY}: expected a store id of 32 digits, found {store_id!r}"
        )
    return store_id

"""A model of a disk: what may be found after a power cut, given the file calls before it.

Only what was synced is sure. Of the rest, each part is as it was at the last sync, or as any later
call left it, independently of every other part:

    a name in a directory      until the directory is synced: created, removed, renamed or not
    the length of a file       until the file is synced
    a sector of 512 bytes      until the file is synced; a sector is never torn itself

which is more than most file systems lose, and what POSIX allows. A sync that failed is worse than
none: data written before it is lost for good, though a later sync succeeds (as on Linux, whose page
cache then holds clean pages that never reached the disk; the length is not among them).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.recording import Call

SECTOR_BYTES = 512

Choose = Callable[[str, Sequence[Any]], Any]
"""Picks one of a part's versions, oldest first; the kind of part is "name", "size" or "sector"."""


def dropped(_: str, versions: Sequence[Any]) -> Any:
    """Everything that was not synced is lost."""
    return versions[0]


def kept(_: str, versions: Sequence[Any]) -> Any:
    """Nothing is lost: what a killed process leaves behind."""
    return versions[-1]


def emptied(kind: str, versions: Sequence[Any]) -> Any:
    """Names and lengths are kept, data is lost: what a journal of metadata alone may leave."""
    return versions[0 if kind == "sector" else -1]


def torn(seed: Sequence[int]) -> Choose:
    """Each part is of any age, by chance."""
    rng = np.random.default_rng(seed)
    return lambda _, versions: versions[int(rng.integers(len(versions)))]


class _Content:
    """One file's bytes: as synced, as they are, and what happened in between."""

    def __init__(self) -> None:
        self.synced = b""
        self.now = bytearray()
        self.sizes: list[int] = []
        self.sectors: dict[int, list[bytes]] = {}

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.now):
            self.resize(end)
        self.now[offset:end] = data
        self._note(offset, end)

    def resize(self, size: int) -> None:
        cut, before = min(size, len(self.now)), len(self.now)
        self.now = self.now[:cut] + bytes(size - cut)
        self.sizes.append(size)
        if cut < before:
            self._note(cut, before)

    def sync(self) -> None:
        self.synced = self.after_cut(kept)
        self.sizes, self.sectors = [], {}

    def lose(self) -> None:
        self.sectors = {}

    def after_cut(self, choose: Choose) -> bytes:
        size = choose("size", [len(self.synced), *self.sizes])
        content = bytearray(self.synced[:size].ljust(size, b"\0"))
        for sector, versions in self.sectors.items():
            at = sector * SECTOR_BYTES
            if at < size:
                old = self.synced[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
                chosen = choose("sector", [old, *versions])
                content[at : at + SECTOR_BYTES] = chosen[: size - at]
        return bytes(content)

    def _note(self, low: int, high: int) -> None:
        for sector in range(low // SECTOR_BYTES, -(-high // SECTOR_BYTES)):
            at = sector * SECTOR_BYTES
            version = bytes(self.now[at : at + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
            self.sectors.setdefault(sector, []).append(version)


class _Directory:
    """One directory's names: as synced, and what happened since."""

    def __init__(self) -> None:
        self.synced: dict[str, Any] = {}
        self.now: dict[str, Any] = {}
        self.pending: dict[str, list[Any]] = {}

    def put(self, name: str, entry: Any) -> None:
        self.now[name] = entry
        self.pending.setdefault(name, []).append(entry)

    def sync(self) -> None:
        self.synced = {name: entry for name, entry in self.now.items() if entry is not None}
        self.pending = {}

    def after_cut(self, choose: Choose) -> dict[str, Any]:
        names = [*self.synced, *(n for n in self.pending if n not in self.synced)]
        chosen = {n: choose("name", [self.synced.get(n), *self.pending.get(n, [])]) for n in names}
        return {name: entry for name, entry in chosen.items() if entry is not None}


class Disk:
    """One directory tree, to which recorded calls are applied."""

    def __init__(self) -> None:
        self._root = _Directory()

    def apply(self, call: Call) -> None:
        """Let a call take effect."""
        folder, name = os.path.split(call.path)
        match call.verb:
            case "create":
                self._create(call.path)
            case "write":
                self._find(call.path).write(call.offset, call.data)
            case "allocate":
                content = self._find(call.path)
                content.resize(max(len(content.now), call.offset + call.length))
            case "truncate":
                self._find(call.path).resize(call.length)
            case "sync":
                self._find(call.path).sync()
            case "failed_sync":
                self._find(call.path).lose()
            case "rename":
                entry = self._find(call.path)
                self._find(folder).put(name, None)
                folder, name = os.path.split(call.target)
                self._find(folder).put(name, entry)
            case "remove" | "remove_directory":
                if self._find(folder).now.get(name) is not None:
                    self._find(folder).put(name, None)
            case "make_directory":
                self._make_directory(call.path)
            case "sync_directory" if call.path != "..":
                self._find(call.path).sync()

    def write_to(self, path: Path, choose: Choose) -> None:
        """Write what is found after a power cut now into a new directory."""
        _write_directory(self._root, path, choose)

    def _find(self, path: str) -> Any:
        entry: Any = self._root
        for part in filter(None, path.split("/")):
            entry = entry.now[part]
        return entry

    def _create(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._find(folder).put(name, _Content())

    def _make_directory(self, path: str) -> None:
        directory = self._root
        for part in filter(None, path.split("/")):
            if directory.now.get(part) is None:
                directory.put(part, _Directory())
            directory = directory.now[part]


def _write_directory(directory: _Directory, path: Path, choose: Choose) -> None:
    path.mkdir()
    for name, entry in directory.after_cut(choose).items():
        if isinstance(entry, _Directory):
            _write_directory(entry, path / name, choose)
        else:
            (path / name).write_bytes(entry.after_cut(choose))

"""Folders full of files that are no store's, and what is there before and after."""

import os
import stat
from pathlib import Path
from typing import Any

ODD = ("a b\n\x1b", "ümlaut", "-rf", "*", ".hidden", "000000000001.log.txt", "x.catalogue.txt")
ROOMS = ("log", "base", "ids", "labels", "backup", "incoming", "frequency")
Listing = dict[str, tuple[int, Any]]


def listing(folder: Path) -> Listing:
    """Return all that is below a folder: type and permissions, and content or target."""
    found: Listing = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content: Any = path.readlink() if stat.S_ISLNK(mode) else None
        content = path.read_bytes() if stat.S_ISREG(mode) else content
        found[str(path.relative_to(folder))] = mode, content
    return found


def strew(folder: Path, outside: Path, rooms: tuple[str, ...] = ROOMS) -> None:
    """Put strange files into a folder, and into folders with the names of the store's own."""
    outside.mkdir(exist_ok=True)
    (outside / "victim").write_bytes(b"precious")
    for room in ("", *rooms):
        (folder / room).mkdir(exist_ok=True)
        for name in ODD:
            (folder / room / name).write_bytes(name.encode())
        (folder / room / "to-file").symlink_to(outside / "victim")
        (folder / room / "to-folder").symlink_to(outside)
        (folder / room / "to-nothing").symlink_to(outside / "none")
        (folder / room / "folder").mkdir()
        (folder / room / "folder" / "file").write_bytes(b"deep")
        os.mkfifo(folder / room / "pipe")

"""Files that record every call that changes something, in the order in which they took effect."""

import threading
from dataclasses import dataclass
from typing import Any

from embstore.storage.files import File, Files


@dataclass(frozen=True)
class Call:
    """One file call that has returned. `data`, `offset`, `length`, `target` where it has them."""

    verb: str
    path: str
    offset: int = 0
    length: int = 0
    data: bytes = b""
    target: str = ""


class RecordingFiles(Files):
    """Does everything as `Files` does, one call at a time, and keeps `calls`."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.calls: list[Call] = []
        self._turn = threading.Lock()


def _recorded(verb: str, *names: str) -> Any:
    """Return a call of `Files` that is recorded, with what was given to it by its names."""
    call = getattr(Files, f"_{verb}")

    def recorded(files: RecordingFiles, place: File | str, *given: Any) -> Any:
        path = place if isinstance(place, str) else place.path
        with files._turn:
            found = call(files, place, *given)
            noted = dict(zip(names, given, strict=True))
            if "data" in noted:
                noted["data"] = bytes(noted["data"])
            files.calls.append(Call(verb, path, **noted))
        return found

    return recorded


for _verb, _names in {
    "write": ("offset", "data"),
    "allocate": ("offset", "length"),
    "truncate": ("length",),
    "rename": ("target",),
    **dict.fromkeys(("sync", "create", "make_directory", "remove"), ()),
    **dict.fromkeys(("remove_directory", "sync_directory"), ()),
}.items():
    setattr(RecordingFiles, f"_{_verb}", _recorded(_verb, *_names))

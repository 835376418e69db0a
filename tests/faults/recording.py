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

    def _write(self, file: File, offset: int, data: memoryview) -> None:
        with self._turn:
            super()._write(file, offset, data)
            self.calls.append(Call("write", file.path, offset=offset, data=bytes(data)))

    def _allocate(self, file: File, offset: int, length: int) -> None:
        with self._turn:
            super()._allocate(file, offset, length)
            self.calls.append(Call("allocate", file.path, offset=offset, length=length))

    def _truncate(self, file: File, length: int) -> None:
        with self._turn:
            super()._truncate(file, length)
            self.calls.append(Call("truncate", file.path, length=length))

    def _sync(self, file: File) -> None:
        with self._turn:
            super()._sync(file)
            self.calls.append(Call("sync", file.path))

    def _create(self, path: str) -> int:
        with self._turn:
            descriptor = super()._create(path)
            self.calls.append(Call("create", path))
        return descriptor

    def _make_directory(self, path: str) -> None:
        with self._turn:
            super()._make_directory(path)
            self.calls.append(Call("make_directory", path))

    def _rename(self, source: str, target: str) -> None:
        with self._turn:
            super()._rename(source, target)
            self.calls.append(Call("rename", source, target=target))

    def _remove(self, path: str) -> None:
        with self._turn:
            super()._remove(path)
            self.calls.append(Call("remove", path))

    def _remove_directory(self, path: str) -> None:
        with self._turn:
            super()._remove_directory(path)
            self.calls.append(Call("remove_directory", path))

    def _sync_directory(self, path: str) -> None:
        with self._turn:
            super()._sync_directory(path)
            self.calls.append(Call("sync_directory", path))


class UnsyncedFiles(Files):
    """Files of a directory that need not survive a power cut: nothing is synced, which is quick."""

    def _sync(self, file: File) -> None:
        pass

    def _sync_directory(self, path: str) -> None:
        pass

"""Removal of unnamed files, on a separate thread.

To remove a file of 256 MiB and its last map takes the system a tenth of a second, and a command
must not wait for that. A later command starts the thread, when nothing else refers to the maps. If
the process ends before that, the next opening of the store removes the remaining files.
"""

import threading
from collections.abc import Iterable

from embstore.storage.files import Files


class Removal:
    """Removes files of one store. Engine thread only."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._paths: list[str] = []  # files to be removed
        self._maps: list[object] = []
        self._threads: list[threading.Thread] = []

    def remove(self, paths: Iterable[str], maps: object) -> None:
        """Record files that are to be removed soon. `maps` are released after the files are
        removed, so that the thread frees the maps' memory."""
        self._paths += paths
        self._maps.append(maps)

    def begin(self) -> None:
        """Start a thread that removes the files recorded by `remove`."""
        if not self._paths:
            return
        arguments = self._files, self._paths, self._maps
        self._paths, self._maps = [], []
        thread = threading.Thread(target=_remove, args=arguments, name="removal", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            _remove(*arguments)
        else:
            self._threads.append(thread)

    def finish(self) -> None:
        """Wait until all files are removed."""
        self.begin()
        for thread in self._threads:
            thread.join()


def _remove(files: Files, paths: list[str], maps: list[object]) -> None:
    for path in paths:
        files.discard(path)
    maps.clear()

"""The processes of this host that clients run in, and the moment at which each ends.

A trainer that is killed can close no session. Its lease would keep its tables for seconds more, and
a trainer that is started in its place would wait. The kernel reports the process that has connected
to the socket (SO_PEERCRED), and a pidfd of it becomes readable as it ends. The end of a connection
is a weaker sign: a live process closes connections and opens others, and a forked child keeps the
connections of a parent that was killed.

**When a member of a session ends.** A member may be joined by one process, used by another, and
used over the network as well. Each of its ranks counts calls by process (`Rank.calls`). When a
process ends, a member ends with it if no other process that has used it lives, and if it has made
several calls: `embstore call` makes one and ends, and a script of such commands keeps its member.

**Callers left to the lease.** A process whose end cannot be known counts as process 0, which never
ends: a caller over gRPC or REST, one of another PID namespace (a container), and one for which the
server has no descriptor left, or no pidfd by its sandbox. Clients do not send their process id.

Event loop only.
"""

import asyncio
import os
from collections.abc import Callable

UNKNOWN = 0


class Processes:
    """Watches processes; calls `ended` with the id of each that ends."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[int, int] = {}  # by process id; no other gets that meanwhile

    def watched(self, process: int) -> int:
        """Watch a process from now on, and return its id; UNKNOWN if that is impossible."""
        if process not in self._descriptors:
            try:
                descriptor = os.pidfd_open(process)
            except OSError:
                return UNKNOWN
            self._descriptors[process] = descriptor
            self._loop.add_reader(descriptor, self._has_ended, process)
        return process

    def is_watched(self, process: int) -> bool:
        """Return whether a process is watched, and has not ended."""
        return process in self._descriptors

    def _has_ended(self, process: int) -> None:
        self._forget(process)
        self._ended(process)

    def _forget(self, process: int) -> None:
        descriptor = self._descriptors.pop(process)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Watch none of them any more."""
        for process in tuple(self._descriptors):
            self._forget(process)

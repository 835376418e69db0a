"""The processes of this host in which clients run, and the moment at which each ends.

A trainer that is killed cannot close its session. The session's lease would keep the session's
tables for some seconds more, and a trainer that is started in place of the killed trainer would
wait. The kernel reports the process that has connected to the socket (SO_PEERCRED), and a pidfd of
that process becomes readable when it ends. The end of a connection is a weaker sign: a live process
closes connections and opens others, and a forked child keeps the connections of a parent that was
killed.

**When a member of a session ends.** One process can join as a member, and another process can use
the membership, over the network as well. Each of the session's ranks counts calls by process
(`Rank.calls`). When a process ends, a member of the session ends with it if no other live process
has used this member, and if the process has made several calls: `embstore call` makes one call and
ends, and a script of such commands keeps its member.

**Callers left to the lease.** A process whose end cannot be observed counts as process 0, which
never ends. Such a process is a caller over gRPC or REST, a caller in another PID namespace (a
container), or a caller whose pidfd the server cannot open, because no descriptor is left or the
server's sandbox forbids it. Clients do not send their process id.

Event loop only.
"""

import asyncio
import os
from collections.abc import Callable

UNKNOWN = 0


class Processes:
    """Watches processes; calls `ended` with the id of each process that ends."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        # by process id; the kernel does not reuse the id while the descriptor is open
        self._descriptors: dict[int, int] = {}

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
        """Stop watching all processes."""
        for process in tuple(self._descriptors):
            self._forget(process)

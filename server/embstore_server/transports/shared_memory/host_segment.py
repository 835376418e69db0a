"""Memory that one client shares with the server; the server makes it, and sends a descriptor.

The memory is a file in memory without a name (memfd). Therefore it needs no space in /dev/shm, and
is freed when the last process has closed it. Its size is sealed. Its bytes count as in flight as
long as the server keeps the segment (`Inflight.lend`). If a client still maps a part of a released
segment, the operating system counts that part as the client's own memory.
"""

import errno
import fcntl
import mmap
import os

from embstore.errors import CapacityError
from embstore_server.path.inflight import Reservation

_LEAST_BYTES = 64 << 10
_NO_ROOM = {errno.ENOSPC, errno.ENOMEM}


def segment_bytes(wanted: int) -> int:
    """Return the size of a segment for `wanted` bytes.

    Up to 64 MiB the size is a power of two, so that a growing segment is made few times; above 64
    MiB it is a multiple of 16 MiB, so that little is wasted.
    """
    if wanted <= 64 << 20:
        return max(1 << (wanted - 1).bit_length(), _LEAST_BYTES)
    step = 16 << 20
    return -(-wanted // step) * step


class HostSegment:
    """Shared memory of a fixed size; `close` releases it."""

    def __init__(self, size: int, reservation: Reservation) -> None:
        """Make the memory; this takes a fifth of a millisecond per MiB. Any thread. Raises
        CapacityError if memory is short."""
        self.size = size
        self._reservation = reservation
        try:
            self.descriptor = os.memfd_create("embstore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as exc:
            raise CapacityError(f"no descriptor to share memory with a client: {exc}") from exc
        try:
            # allocates the pages; otherwise the first access may fail
            os.posix_fallocate(self.descriptor, 0, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            shared = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self.memory = memoryview(mmap.mmap(self.descriptor, size, shared))
        except OSError as exc:
            os.close(self.descriptor)
            if exc.errno not in _NO_ROOM:
                raise
            raise CapacityError(f"no memory to share {size} bytes with a client: {exc}") from exc

    def passed(self) -> None:
        """Close the descriptor, which the client has received; the maps of both sides stay."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Release the segment; its memory is freed when the last call that reads it has ended."""
        self.memory = memoryview(b"")
        self._reservation.release()

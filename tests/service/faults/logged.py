"""A server process whose memory is looked at, and whose whole log is kept: what it complains of."""

import os
from collections import deque
from pathlib import Path

from embstore_server.setup.launch import ServerProcess


class LoggedServer(ServerProcess):
    """`embstore serve` on one thread of the CPU."""

    def __init__(self, data: Path, *options: str) -> None:
        quiet = ("--slow-call-ms", "1000000", "--scrub-bytes-per-s", "0")
        super().__init__(data, "--device", "cpu", "--threads", "1", *quiet, *options)
        self._lines = deque()

    def resident_bytes(self) -> int:
        """Return the memory that the process holds in RAM."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def complaints(self) -> list[str]:
        """Return what of its log is no event, or one of an error; the log is forgotten."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return [line for line in lines if '"level": "' not in line or '"level": "err' in line]

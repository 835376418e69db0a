"""The parent's side of ``memory.py``: peaks of a process's memory, read from /proc."""

import contextlib
import pathlib
from typing import Any

from tests.bench.scale import Scale
from tests.bench.worker import Worker

ALLOWANCE_BYTES = 300 << 20
SHARES = {"cache-100": 1.0, "cache-5": 0.05}


def status_bytes(pid: int | str) -> dict[str, int]:
    """Return the kinds of memory that a process has."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) << 10 for name, _, value in fields}


class Peak:
    """The largest RssAnon and RssShmem seen of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.bytes_seen = {"RssAnon": 0, "RssShmem": 0}

    def sample(self) -> None:
        """Read once; a process that has just ended is no error."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = status_bytes(self._pid)
            self.bytes_seen = {n: max(b, found.get(n, 0)) for n, b in self.bytes_seen.items()}


def measure(share_name: str, scale: Scale) -> dict[str, Any]:
    """Return the peaks of a fresh process whose store caches that share of the rows."""
    cache_bytes = scale.cache_bytes(scale.rows * SHARES[share_name], scale.dim)
    worker = Worker("memory", scale)
    try:
        peak = Peak(worker.pid)
        peak.sample()
        at_start = peak.bytes_seen["RssAnon"]
        worker.ask("work", f"memory-{share_name}", cache_bytes, watch=peak.sample)
    finally:
        worker.close()
    return {
        "cache_bytes": cache_bytes,
        "rss_anon_start_bytes": at_start,
        "rss_anon_peak_bytes": peak.bytes_seen["RssAnon"],
        "rss_shmem_peak_bytes": peak.bytes_seen["RssShmem"],
        "beyond_cache_bytes": peak.bytes_seen["RssAnon"] - cache_bytes,
    }

"""The counters of a pool, which only grow. They count hits both by unique key and by access.

**By access**, a key that a call names five times counts five times, hit or miss; **by unique key**,
it counts once. Hits are counted only for lookups, and only in level one. Misses are counted for all
commands, since updates bring rows in too, and by origin: the place that the row came from. A miss
whose origin is the host is a hit of level two; misses of the other origins miss in both levels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.stats import counter, ratio, share


def _misses(origin: str) -> Any:
    text = f"Rows that a command brought in from the {origin}."
    return counter(text, metric="misses", labels={"origin": origin})


def _evictions(kind: str, target: str) -> Any:
    text = f"Rows that left the pool and were {target}."
    return counter(text, metric="evictions", labels={"kind": kind})


@dataclass
class Counters:
    """The counts of one pool since it was created. Engine thread only."""

    access_hit_rate: float | None = ratio(
        "Accesses that hit.", lambda c: share(c.access_hits, c.accesses)
    )
    unique_hit_rate: float | None = ratio(
        "Unique keys that hit.", lambda c: share(c.unique_hits, c.unique_keys)
    )
    host_hit_rate: float | None = ratio(
        "Rows missing in level one that level two had; none until a row went down.",
        lambda c: share(c.misses_host, c.misses_below),
    )
    accesses: int = counter("Keys of lookups, repeated ones each time.")
    access_hits: int = counter("Accesses that found their row resident.")
    unique_keys: int = counter("Keys of lookups, each once a call.")
    unique_hits: int = counter("Unique keys that found their row resident.")
    misses_log: int = _misses("log")
    misses_base: int = _misses("base")
    misses_initializer: int = _misses("initializer")
    misses_host: int = counter(
        "Rows that a command brought in from level two, in the host's memory.",
        metric="misses",
        labels={"origin": "host"},
    )
    evictions_clean: int = _evictions("clean", "dropped, as the disk has them")
    evictions_dirty: int = _evictions("dirty", "appended to the log")
    evictions_host: int = _evictions("host", "kept in level two, in the host's memory")
    calls_in_parts: int = counter("Calls with more unique keys than the pool has slots.")
    parts: int = counter("Parts that those calls were processed in.")

    def count_lookup(self, *, keys: int, missing: int, accesses: int, hits: int) -> None:
        """Count a lookup's unique keys, its missing keys, its accesses, and its hits."""
        self.unique_keys += keys
        self.unique_hits += keys - missing
        self.accesses += accesses
        self.access_hits += hits

    def count_origins(self, found: NDArray[np.uint8]) -> None:
        """Count where missing rows were found: 0 means nowhere, 1 in the log, 2 in the base."""
        origins = np.bincount(found, minlength=3)
        self.misses_initializer += int(origins[0])
        self.misses_log += int(origins[1])
        self.misses_base += int(origins[2])

    def count_evictions(self, slots: int, dirty: int) -> None:
        """Count rows that left the cache. `slots` is their number; `dirty` of them were logged."""
        self.evictions_dirty += dirty
        self.evictions_clean += slots - dirty

    @property
    def has_evicted(self) -> bool:
        """Whether a row has ever left the pool."""
        return self.evictions_clean + self.evictions_dirty + self.evictions_host > 0

    @property
    def misses_below(self) -> int:
        """The number of rows that were missing in level one and brought in; 0 as long as no row has
        moved down to level two."""
        if not self.evictions_host:
            return 0
        return self.misses_host + self.misses_log + self.misses_base + self.misses_initializer

    def count_parts(self, parts: int) -> None:
        """Count one more call that is processed in parts, and its `parts` parts."""
        self.calls_in_parts += 1
        self.parts += parts

"""What a pool did, in numbers that only grow. Both hit definitions: by unique key and by access."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Counters:
    """The counts of one pool, since it was made. Engine thread only."""

    accesses: int = 0
    access_hits: int = 0
    unique_keys: int = 0
    unique_hits: int = 0
    misses_log: int = 0
    misses_base: int = 0
    misses_initializer: int = 0
    evictions_clean: int = 0
    evictions_dirty: int = 0
    calls_in_parts: int = 0
    parts: int = 0

    def count_lookup(self, *, keys: int, missing: int, accesses: int, hits: int) -> None:
        """Count unique keys, how many were absent, their accesses, and how many of these hit."""
        self.unique_keys += keys
        self.unique_hits += keys - missing
        self.accesses += accesses
        self.access_hits += hits

    def count_origins(self, found: NDArray[np.uint8]) -> None:
        """Count where missing rows were: `found` is 0 nowhere, 1 in the log, 2 in the base."""
        origins = np.bincount(found, minlength=3)
        self.misses_initializer += int(origins[0])
        self.misses_log += int(origins[1])
        self.misses_base += int(origins[2])

    def count_evictions(self, slots: int, dirty: int) -> None:
        """Count rows that left their slots, and how many of them were logged."""
        self.evictions_dirty += dirty
        self.evictions_clean += slots - dirty

    def count_parts(self, parts: int) -> None:
        """Count a call that is done in parts."""
        self.calls_in_parts += 1
        self.parts += parts

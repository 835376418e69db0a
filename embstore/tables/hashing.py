"""Rows that a digest reads in slices, and hashes in threads of its own meanwhile."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from embstore.layout import Layout

SLICE_ROWS = 1 << 14
"""Rows that are looked for in a slice; of a dense table, and some of one more block. Less where
calls wait."""
_SLICE_BYTES = 4 << 20
"""Bytes of rows that are copied in a slice, at most approximately."""
AHEAD_BYTES = 32 << 20
"""Rows that are prefetched from the disk at a time, at most, while the ones before are hashed."""
HASH_THREADS = 2


def slice_rows(layout: Layout) -> int:
    """Return how many rows are looked for in a slice where no call waits."""
    return min(SLICE_ROWS, max(1, _SLICE_BYTES // layout.record_bytes))


@contextmanager
def hashing() -> Iterator[Callable[..., None]]:
    """Yield a function that has `work(*arguments)` done in one of the threads, and waits where much
    is to be done; at the end all is."""
    pending: deque[Future[None]] = deque()
    ahead = max(HASH_THREADS, AHEAD_BYTES // _SLICE_BYTES)
    with ThreadPoolExecutor(HASH_THREADS) as threads:

        def submit(work: Callable[..., None], *arguments: Any) -> None:
            pending.append(threads.submit(work, *arguments))
            if len(pending) > ahead:
                pending.popleft().result()

        yield submit
        for future in pending:
            future.result()

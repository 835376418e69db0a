"""Threads that hash the rows of a digest, while the digest reads further rows in slices."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from embstore.layout import Layout

SLICE_ROWS = 1 << 14
"""The most rows that a slice searches; for a dense table a slice can exceed this number by part of
a block. Slices are smaller while calls wait."""
_SLICE_BYTES = 4 << 20
"""The most bytes of rows, approximately, that are copied in a slice."""
AHEAD_BYTES = 32 << 20
"""The most bytes of rows that are read ahead from the disk while earlier rows are hashed."""
HASH_THREADS = 2


def slice_rows(layout: Layout) -> int:
    """Return the number of rows that a slice searches while no call waits."""
    return min(SLICE_ROWS, max(1, _SLICE_BYTES // layout.record_bytes))


@contextmanager
def hashing() -> Iterator[Callable[..., None]]:
    """Yield a function that submits `work(*arguments)` to the threads, and waits if too much work
    is pending. At the end of the context all work is done."""
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

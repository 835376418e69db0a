"""Dirty rows that leave the cache, appended to the log.

Space for every row that a command may push out of the cache is reserved before the command changes
a row, so that the whole command is refused if the disk is full. Rows are packed and indexed in
pieces; a piece is packed while the piece before it is being written.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.host.workers import Workers
from embstore.layout import ELEMENT, record_bytes_of
from embstore.storage.contents import Contents
from embstore.storage.records import pack

_APPEND_BYTES = 4 << 20
"""Rows are packed and written in pieces of this size: a piece stays in the processor's cache."""


class Appender:
    """Appends rows to the log of a store. Engine thread only."""

    def __init__(
        self, contents: Contents, workers: Workers, slow_down: Callable[[int], None]
    ) -> None:
        self.bytes_written = 0
        self._slow_down = slow_down
        self._contents = contents
        self._workers = workers

    def reserve(self, records: int, record_bytes: int, *, bounded: bool = True) -> None:
        """Reserve space in the log for `records` records of at most `record_bytes` each.

        The limit on the log's rows applies only if `bounded` is true. A checkpoint passes False:
        once its rows are committed, they can be folded, and a fold shortens the log.
        """
        if records:
            if bounded:
                self._slow_down(records * record_bytes)
            self._contents.log.reserve(records, record_bytes, bounded=bounded)
            self.expect(records)

    def expect(self, records: int) -> None:
        """Grow the log index once for `records` more rows, rather than several times."""
        self._contents.log.index.make_room(records)

    def append(self, keys: Keys, rows: Rows, slots: NDArray[np.int64]) -> None:
        """Log rows[slots] under unique row keys. Space must have been reserved."""
        words = rows.view(np.uint64)
        step = max(1, _APPEND_BYTES // record_bytes_of(rows))
        shape = (min(step, len(keys)), 2 + words.shape[1])
        buffers = [np.empty(shape, np.uint64) for _ in range(1 + (len(keys) > step))]
        with self._contents.irreversible:
            if len(keys) <= step:
                self._place(keys, words, slots, buffers[0])()
                return
            with ThreadPoolExecutor(1) as thread:
                written: Future[None] | None = None
                for number, low in enumerate(range(0, len(keys), step)):
                    part, buffer = slice(low, low + step), buffers[number % 2]
                    write = self._place(keys[part], words, slots[part], buffer)
                    if written is not None:
                        written.result()
                    written = thread.submit(write)
                if written is not None:
                    written.result()

    def bury(self, keys: Keys) -> None:
        """Log that the rows of unique row keys were deleted. Space of RECORD_HEADER_BYTES per key
        must have been reserved."""
        if len(keys):
            self.append(keys, np.empty((len(keys), 0), ELEMENT), np.zeros(len(keys), np.int64))

    def _place(
        self,
        keys: Keys,
        words: NDArray[np.uint64],
        slots: NDArray[np.int64],
        buffer: NDArray[np.uint64],
    ) -> Callable[[], None]:
        """Pack and index the records of rows; return the function that writes the packed
        records."""
        records = buffer[: len(keys)]

        def work(low: int, high: int) -> None:
            pack(words, slots, keys, records, low, high)

        record_bytes = int(records.shape[1]) * records.itemsize
        self._workers.run(work, self._workers.ranges(len(keys), record_bytes))
        self.bytes_written += records.nbytes
        return partial(self._contents.log.place(keys, record_bytes), records)

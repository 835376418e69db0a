"""The input of training: batches, and the steps of a loop.

A file is read in blocks of lines. A tenth of each block is held out, until HELD_OUT_MAX samples are
held out; training never uses these samples. So even a file of a few lines has held-out samples, and
one pass over a stream is enough. (In a real file, held-out samples are as old as the training
samples, so their AUC is a little better than the AUC of a future day.) They are removed from the
block before any other processing, so the same samples are held out whatever the order of the other
samples.

A batch is made in the thread that reads the file (in a session, this is the session's reader), and
contains all its data. `HeldOut` contains all held-out samples when reading has ended.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore_tools.demo.columns import keys_by_table
from embstore_tools.demo.criteo import Samples

HELD_OUT_EVERY = 10
HELD_OUT_MAX = 100_000
"""The largest number of held-out samples. With this number, held-out samples determine the AUC to
about 0.002, and take 32 MB."""


def held_out_of(count: int) -> int:
    """Return the number of a block's samples that are held out."""
    return -(-count // HELD_OUT_EVERY)


class HeldOut:
    """The held-out samples of a file, in the order of the file, collected as its blocks are
    read."""

    def __init__(self) -> None:
        self.parts: list[Samples] = []
        """The held-out part of each block. `without` appends to this list."""
        self.count = 0

    def without(self, blocks: Iterable[Samples]) -> Iterator[Samples]:
        """Yield each block without its held-out part; skip a block of which no samples remain."""
        for block in blocks:
            count = held_out_of(len(block))
            if self.count + count > HELD_OUT_MAX:
                count = 0
            kept = len(block) - count
            if count:
                self.parts.append(block.part(kept, len(block)))
                self.count += count
            if kept:
                yield block.part(0, kept)


@dataclass(frozen=True)
class Batch:
    """The samples of one step."""

    labels: NDArray[np.float32]
    """(n,)"""
    integers: NDArray[np.int64]
    """(n, 13)"""
    keys: dict[str, Keys]
    """Keys by table, (n,)."""

    def __len__(self) -> int:
        return len(self.labels)


def batches(blocks: Iterable[Samples], rows: tuple[int, ...]) -> Iterator[Batch]:
    """Yield a batch for each block; `rows` has the number of rows of each column's table."""
    for block in blocks:
        yield Batch(block.labels, block.integers, keys_by_table(block.categories, rows))


class TrainingStep(NamedTuple):
    """A step of training, with or without a session."""

    batch: Batch
    lookup: Callable[[], dict[str, Rows]]
    """Returns a row for each key of the batch, in the batch's order: (n, dim) by table."""
    update: Callable[[Mapping[str, Rows]], object]
    """Applies a gradient for each key of the batch, (n, dim) by table."""

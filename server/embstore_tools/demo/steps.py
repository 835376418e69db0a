"""The input of training: batches, and the steps that they become in a loop.

A file is read in blocks of lines. Each tenth part of a block is held out, until there are
HELD_OUT_MAX samples, and is never trained on: any file of a few lines has some, and one pass over a
stream is enough. (In a real file they are as old as the training samples, so their AUC is a little
better than the AUC of a future day.) It is taken from the block before anything else is done with
it, so that the held-out samples are the same for all orders of the other samples.

A batch is made on the reading thread, in a session the reader's, so it contains all its data.
HeldOut has the held-out samples once reading has ended.
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
"""Samples held out, at most: they give an AUC to about 0.002, and take 32 MB."""


def held_out_of(count: int) -> int:
    """Return how many of a block's samples are held out."""
    return -(-count // HELD_OUT_EVERY)


class HeldOut:
    """The held-out samples of a file, in its order, collected as its blocks are read."""

    def __init__(self) -> None:
        self.parts: list[Samples] = []
        """The held-out part of each block. Iteration adds to it."""
        self.count = 0

    def without(self, blocks: Iterable[Samples]) -> Iterator[Samples]:
        """Yield the rest of each block, if there is any."""
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
    """Samples of one step."""

    labels: NDArray[np.float32]
    """(n,)"""
    integers: NDArray[np.int64]
    """(n, 13)"""
    keys: dict[str, Keys]
    """Keys by table, (n,)."""

    def __len__(self) -> int:
        return len(self.labels)


def batches(blocks: Iterable[Samples], rows: tuple[int, ...]) -> Iterator[Batch]:
    """Yield a batch for each block; `rows` are the numbers of rows of the columns' tables."""
    for block in blocks:
        yield Batch(block.labels, block.integers, keys_by_table(block.categories, rows))


class TrainingStep(NamedTuple):
    """A step of training, in a session or not."""

    batch: Batch
    lookup: Callable[[], dict[str, Rows]]
    """Returns a row for each key of the batch, in its order: (n, dim) by table."""
    update: Callable[[Mapping[str, Rows]], object]
    """Applies a gradient for each key of the batch, (n, dim) by table."""

"""The steps of training: what a batch is, and the two ways to its rows.

In a session, the store's own, a thread reads batches ahead and announces their keys; the store
brings their rows before the step asks. Without one, a step is a lookup and an update like any
other, and nobody knows what comes next. The loop cannot tell the ways apart, and neither can a bit
of the tables.

A batch is made by whoever reads: in a session that is the reader's thread, so all that is known of
it is in it, and nothing is shared with the loop. It is made of a block of lines: each tenth part is
held out, until there are HELD_OUT_MAX samples, and is never trained on: any file of a few lines has
some, and one pass over a stream is enough. (In a real file they are as old as what is trained on,
so their AUC is a little better than that of a day to come.)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from embstore.arrays import Keys, Rows
from embstore_server.demo.columns import keys_by_table
from embstore_server.demo.criteo import Samples
from embstore_server.demo.stores import TrainingStore

HELD_OUT_EVERY = 10
HELD_OUT_MAX = 100_000
"""An AUC of so many samples is known to about 0.002, and they take 32 MB."""


@dataclass(frozen=True)
class Batch:
    """A block of samples in its two parts; either may be empty."""

    samples: Samples
    """To train on."""
    held_out: Samples
    keys: dict[str, Keys]
    """Of `samples` by table, (n,), in their order."""

    def __len__(self) -> int:
        return len(self.samples) + len(self.held_out)


def batches(blocks: Iterable[Samples], rows: tuple[int, ...]) -> Iterator[Batch]:
    """Yield a batch for each block; `rows` are those of each column's table."""
    held_out = 0
    for block in blocks:
        count = -(-len(block) // HELD_OUT_EVERY)
        if held_out + count > HELD_OUT_MAX:
            count = 0
        held_out += count
        kept = len(block) - count
        samples = block.part(0, kept)
        keys = keys_by_table(samples.categories, rows)
        yield Batch(samples, block.part(kept, len(block)), keys)


class CallStep:
    """A step outside a session: a lookup and an update of the store."""

    def __init__(self, store: TrainingStore, batch: Batch) -> None:
        self._store = store
        self.batch = batch

    def lookup(self) -> dict[str, Rows]:
        """Return a row for each key of the batch, in its order: (n, dim) by table."""
        return self._store.lookup(self.batch.keys)

    def update(self, gradients: Mapping[str, Rows]) -> None:
        """Apply a gradient for each key of the batch."""
        keys = self.batch.keys
        self._store.update({name: (keys[name], rows) for name, rows in gradients.items()})

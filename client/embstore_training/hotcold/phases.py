"""The packed batches in phases: stretches of batches of one kind, on which all ranks agree.

With a single rank, a phase lasts as long as the next batch is of the same kind. Several ranks pack
their own samples, and their stretches have different lengths. Because all ranks share each step,
they agree before each phase: every rank announces the kind and the number of its next batches. If
all ranks have hot batches next, the phase is hot, and is as long as the shortest of these
stretches. Otherwise the phase is mixed, and a hot batch in it is trained like a mixed batch. This
is always possible; it costs a little traffic and changes no bit.

A hot batch is also trained like a mixed batch if its rows, from all ranks together, are more than
one push (the call that sends hot rows to the store) can send: if it were trained at the trainer,
its rows could never be sent. Therefore ranks also announce how many bytes each of their hot batches
can add to a push. A phase ends where the next batches would exceed a push and the present batches
do not, or vice versa.

A rank without further batches takes part with empty batches, which have all columns of its stream,
until no rank has batches. The other ranks need this rank for their steps, and no sample is lost. A
stream without any chunk has no columns, and is refused if other ranks have batches.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from embstore.errors import InvalidArgumentError
from embstore_training.hotcold.packer import Batch, Packed
from embstore_training.hotcold.ragged import keys_of
from embstore_training.hotcold.replica import Replica
from embstore_training.replicas.ranks import AllGather, Verb, meet

AGREED_BATCHES_MAX = 64
"""The maximum number of batches on which ranks agree at once. A rank keeps this number of batches
in memory, in addition to the batches of the packer."""


class PhaseBatch(NamedTuple):
    """A batch of a phase."""

    batch: Batch
    push_bytes: int
    """The maximum number of bytes that a hot batch adds to the next push; in a phase, the sum over
    the batches that all ranks train at once."""


class Phase(NamedTuple):
    """Consecutive batches of one kind."""

    is_hot: bool
    batches: Iterator[PhaseBatch]


class PushCapacity(NamedTuple):
    """The bytes that one push can send, and a function that returns how many bytes a hot batch may
    need."""

    bytes_max: int
    bytes_of: Callable[[Batch], int]


def push_bytes_of(
    replica: Replica, columns: Mapping[str, str], ranks: int, bytes_max: int, batch: Batch
) -> int:
    """Return the maximum number of bytes that a hot batch of a rank adds to the next push.

    The result is 0 if a push can send all hot rows. Otherwise it is computed from the ids, repeated
    ids included. If batches of that size from all ranks could exceed one push, it is computed from
    the distinct keys instead.
    """
    if replica.hot_bytes <= bytes_max:
        return 0
    counts = dict.fromkeys(columns.values(), 0)
    for column, table in columns.items():
        counts[table] += batch[column].size
    by_ids = replica.push_bytes(counts)
    if by_ids <= bytes_max // ranks:
        return by_ids
    keys = keys_of(batch, columns)
    return replica.push_bytes({table: len(np.unique(k)) for table, k in keys.items()})


class Phases:
    """The phases of one rank's stream. One thread at a time."""

    def __init__(
        self,
        packed: Iterator[Packed],
        empty: Callable[[], Batch | None],
        room: PushCapacity,
        all_gather: AllGather | None,
    ) -> None:
        """Take a stream. `empty` returns a batch of no samples, or None if the stream's columns are
        unknown."""
        self._packed, self._empty = packed, empty
        self._room, self._all_gather = room, all_gather
        self._ready: deque[tuple[bool, PhaseBatch]] = deque()  # (is hot, batch) pairs

    def following(self) -> Phase | None:
        """Return the next phase; None after the last phase. The batches of the previous phase must
        be used up.

        Raises
        ------
        InvalidArgumentError : a rank had no chunk, and other ranks have batches. All ranks raise
            this error.
        Errors of the stream, and of the hook.
        """
        is_hot = self._is_next(True)
        if self._all_gather is None:
            return Phase(is_hot, self._of_kind(is_hot)) if self._ready else None
        ahead = self._ahead(is_hot) if self._ready else []
        numbers = [is_hot, self._empty() is not None, *(ready.push_bytes for ready in ahead)]
        messages = [t.numbers for t in meet(self._all_gather, Verb.PHASE, numbers)]
        going = [(bool(is_hot), sizes) for is_hot, _, *sizes in messages if sizes]
        if not going:
            return None
        if chunkless := [
            rank for rank, (_, has_columns, *_) in enumerate(messages) if not has_columns
        ]:
            raise InvalidArgumentError(
                "expected a chunk from every rank, an empty one if a rank has no samples, because "
                f"its batches take their columns from it; found none from ranks {chunkless}"
            )
        sums = [sum(sizes) for sizes in zip(*(sizes for _, sizes in going), strict=False)]
        if not all(is_hot for is_hot, _ in going):
            return Phase(False, self._next(sums))
        # Hot at all ranks: the phase ends before the first batch that differs in whether it fits a
        # push.
        fits = self._fits(sums[0])
        alike = takewhile(lambda push_bytes: self._fits(push_bytes) is fits, sums)
        return Phase(fits, self._next([*alike]))

    def _fits(self, push_bytes: int) -> bool:
        return push_bytes <= self._room.bytes_max

    def _take(self) -> bool:
        """Take one more batch from the packer; return whether there was a batch."""
        packed = next(self._packed, None)
        if packed is None:
            return False
        push_bytes = self._room.bytes_of(packed.batch) if packed.is_hot else 0
        is_hot = packed.is_hot and self._fits(push_bytes)
        self._ready.append((is_hot, PhaseBatch(packed.batch, push_bytes)))
        return True

    def _is_next(self, is_hot: bool) -> bool:
        """Return whether the next batch is of this kind."""
        return bool(self._ready or self._take()) and self._ready[0][0] == is_hot

    def _ahead(self, is_hot: bool) -> list[PhaseBatch]:
        """Return the next batches, all of one kind, and keep them in memory."""
        while len(self._ready) < AGREED_BATCHES_MAX and self._ready[-1][0] == is_hot:
            if not self._take():
                break
        return [batch for _, batch in takewhile(lambda one: one[0] == is_hot, self._ready)]

    def _of_kind(self, is_hot: bool) -> Iterator[PhaseBatch]:
        while self._is_next(is_hot):
            yield self._ready.popleft()[1]

    def _next(self, sums: list[int]) -> Iterator[PhaseBatch]:
        """Yield the next batches, and empty batches after the last batch."""
        for push_bytes in sums:
            batch = self._ready.popleft()[1].batch if self._ready else self._empty()
            assert batch is not None, "ranks without columns do not agree on a phase"
            yield PhaseBatch(batch, push_bytes)

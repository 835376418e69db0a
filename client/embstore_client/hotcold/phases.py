"""The packed batches in phases: stretches of one kind, on all ranks alike.

One rank goes by its packer alone: a phase lasts as long as the next batch is of its kind. Several
ranks pack their own samples, and their phases are of different lengths. As each step is one of all
ranks, they agree before each phase: every rank says of which kind its next batches are and how
many there are of it. The phase is hot if all of these are, and as long as the shortest of them.
Otherwise it is mixed, and a hot batch in it is trained as a mixed one, which it is as well: that
costs a little traffic and changes no bit.

A rank that has no batches left takes part with empty ones, as all columns of length 0, until the
last rank has none: the steps of the others need it, and no sample is lost.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from embstore_client.hotcold.packer import Batch, Packed
from embstore_client.hotcold.ranks import AllGather, Verb, meet

AGREED_BATCHES_MAX = 64
"""Batches that ranks agree on at once, at most: a rank holds as many, beside the packer's."""


class Phase(NamedTuple):
    """Consecutive batches that are trained alike."""

    is_hot: bool
    batches: Iterator[Batch]


class Phases:
    """The phases of one rank's stream. One thread at a time."""

    def __init__(
        self, packed: Iterator[Packed], empty: Batch, all_gather: AllGather | None
    ) -> None:
        """Take the stream; `empty` is a batch without samples, if the stream has none at all."""
        self._packed = packed
        self._ready: deque[Packed] = deque()
        self._empty = empty
        self._all_gather = all_gather

    def following(self) -> Phase | None:
        """Return the next phase, once all of the one before is taken; None after the last.

        Raises
        ------
        What the stream raises, and the hook.
        """
        if self._all_gather is None:
            first = self._peek()
            return None if first is None else Phase(first.is_hot, self._of_kind(first.is_hot))
        return self._agreed(self._all_gather)

    def _agreed(self, all_gather: AllGather) -> Phase | None:
        first = self._peek()
        count = self._count_ahead()
        numbers = [first is not None and first.is_hot, count]
        told = [t.numbers for t in meet(all_gather, Verb.PHASE, numbers, {})]
        going = [(bool(is_hot), count) for is_hot, count in told if count]
        if not going:
            return None
        is_hot = all(is_hot for is_hot, _ in going)
        return Phase(is_hot, self._next(min(count for _, count in going)))

    def _peek(self) -> Packed | None:
        if not self._ready:
            packed = next(self._packed, None)
            if packed is None:
                return None
            self._ready.append(packed)
        return self._ready[0]

    def _count_ahead(self) -> int:
        """Return how many batches of one kind come next, and hold them."""
        while len(self._ready) < AGREED_BATCHES_MAX and self._ends_alike():
            packed = next(self._packed, None)
            if packed is None:
                break
            self._ready.append(packed)
        return sum(p.is_hot == self._ready[0].is_hot for p in self._ready)

    def _ends_alike(self) -> bool:
        """Whether the batches held are all of one kind; if not, the first ones end the phase."""
        return bool(self._ready) and self._ready[0].is_hot == self._ready[-1].is_hot

    def _of_kind(self, is_hot: bool) -> Iterator[Batch]:
        while (packed := self._peek()) is not None and packed.is_hot == is_hot:
            yield self._ready.popleft().batch

    def _next(self, count: int) -> Iterator[Batch]:
        for _ in range(count):
            if self._ready:
                batch = self._ready.popleft().batch
                self._empty = {name: values[:0] for name, values in batch.items()}
                yield batch
            else:
                yield self._empty

"""The messages between ranks that update their replicas equally. The caller's all-gather function
exchanges the messages.

The trainers exchange these messages without the store, in the hot phases of a hot/cold run, and in
runs that are ahead of the store. A **hook** of the caller, `all_gather(x)`, returns the shares of
all ranks, in rank order, as `torch.distributed.all_gather_object` does. A share has the same form
for every purpose: by table, keys (k,) int64 and rows (k, d) float32. A rank also sends its purpose,
as numbers under the name NUMBERS, which no table can have. So ranks that are at different points,
or update with different options, are detected in the exchange, and not later by a wrong digest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError, RankFailedError

Share = dict[str, tuple[Keys, Rows]]
"""By table, keys (k,) and a row for each key, (k, d)."""

AllGather = Callable[[Share], Sequence[Mapping[str, tuple[Keys, Rows]]]]
"""A function that returns every rank's share, in rank order; it blocks until all ranks have called
it."""

NUMBERS = ""


class Verb(IntEnum):
    """The purposes for which ranks exchange messages."""

    BEGIN = 0  # to compare their hot sets
    PHASE = 1  # to agree on the kind and length of the next phase
    UPDATE = 2
    RELEASE = 3
    SKIP = 4
    REFRESH = 5  # to exchange which rows mixed steps have changed
    EXCHANGE = 6  # to push before the phase ends
    PUSHED = 7  # rank 0 has sent the hot rows to the store
    FAILED = 8  # rank 0 could not send the hot rows


class Message(NamedTuple):
    """The message of one rank."""

    numbers: list[int]
    share: Share


class CheckedGather:
    """The caller's hook, with a check that its answer has all ranks' shares in rank order."""

    def __init__(self, all_gather: AllGather, rank: int, world_size: int) -> None:
        self._all_gather, self._rank, self._world_size = all_gather, rank, world_size

    def __call__(self, share: Share) -> list[Share]:
        """Return every rank's share, in rank order."""
        numbers = [self._rank, *share[NUMBERS][0].tolist()]
        answer = [dict(a) for a in self._all_gather(share | _numbers(numbers))]
        ranks = [int(a[NUMBERS][0][0]) if NUMBERS in a else None for a in answer]
        if ranks != [*range(self._world_size)]:
            raise InvalidArgumentError(
                f"expected all_gather to return what ranks 0 to {self._world_size - 1} gave it, in "
                f"this order and unchanged, found ranks {ranks}"
            )
        return [a | _numbers(a[NUMBERS][0][1:]) for a in answer]


def meet(
    all_gather: AllGather | None,
    verb: Verb,
    numbers: Sequence[int] = (),
    share: Share | None = None,
) -> list[Message]:
    """Send this rank's message, and return every rank's message, in rank order. Without a hook, the
    only rank is this rank.

    A rank that sends FAILED accepts any purpose of the other ranks.

    Raises
    ------
    RankFailedError : a rank reports that it failed.
    InvalidArgumentError : ranks sent different purposes.
    """
    share = share or {}
    if all_gather is None:
        return [Message([*numbers], share)]
    messages = [_message(a) for a in all_gather(share | _numbers([verb, *numbers]))]
    verbs = [Verb(t.numbers[0]) for t in messages]
    if Verb.FAILED in verbs and verb is not Verb.FAILED:
        raise RankFailedError(f"rank {verbs.index(Verb.FAILED)} could not push the hot rows")
    if {*verbs} > {verb} and verb is not Verb.FAILED:
        said = [v.name.lower() for v in verbs]
        raise InvalidArgumentError(
            f"expected all ranks to do the same with a step, found {said}; all may do it again"
        )
    return [Message(t.numbers[1:], t.share) for t in messages]


def others_than(wanted: list[int], messages: Iterable[list[int]]) -> list[int]:
    """Return the ranks that sent numbers other than `wanted`."""
    return [rank for rank, numbers in enumerate(messages) if numbers != wanted]


def _message(answer: Mapping[str, tuple[Keys, Rows]]) -> Message:
    numbers = [int(n) for n in answer[NUMBERS][0]]
    return Message(numbers, {name: part for name, part in answer.items() if name != NUMBERS})


def _numbers(numbers: Sequence[int] | Keys) -> Share:
    return {NUMBERS: (np.asarray(numbers, np.int64), np.empty((len(numbers), 0), np.float32))}


def float_bits(value: float) -> int:
    """Return a float64 as an integer of the same bits."""
    return int(np.float64(value).view(np.int64))

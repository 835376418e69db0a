"""What the engine thread brings back from any call: its value, and which state it is of.

A reply's context must be read on the engine thread right after the work, before another command
changes it; hence work is wrapped here, and not by the border that answers.

The answer of some work is yet to come when the engine has done its part: a session's step is
finished by its last rank, whoever's call that is. Such work returns Awaited, and the command number
of its context is that of the outcome.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from embstore.lookahead.handles import StepOutcome
from embstore.results import AcknowledgedUpdate
from embstore.store import Store
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.worker import Work

ENGINE_STAGE = "engine"
"""The whole of a call on the engine thread, among the seconds of its stages."""


class Answered(NamedTuple):
    """A call's value, with the store, epoch and command number that it is of."""

    value: Any
    context: pb.Context
    stage_seconds: dict[str, float]

    def settled(self, done: AcknowledgedUpdate) -> "Answered":
        """Return the answer of a call whose value was Awaited, now that its outcome is there."""
        awaited: Awaited = self.value
        context = pb.Context()
        context.CopyFrom(self.context)
        context.command = done.command
        return self._replace(value=awaited.made(done), context=context)


class Awaited(NamedTuple):
    """The value of a call that waits for others after its work."""

    outcome: StepOutcome
    made: Callable[[AcknowledgedUpdate], Any]
    """Returns the value of the outcome."""


def answering(work: Callable[[Store], Any], instance: str, *, stages: bool = False) -> Work:
    """Return `work` made to return Answered, with the time spent in each stage where asked for."""

    def answered(store: Store) -> Answered:
        before, begin = store.stage_seconds if stages else {}, perf_counter()
        value = work(store)
        seconds = perf_counter() - begin
        context = pb.Context(
            store_id=store.store_id, epoch=store.epoch, command=store.command, instance=instance
        )
        spent = {ENGINE_STAGE: seconds} | _spent(before, store) if stages else {}
        return Answered(value, context, spent)

    return answered


def _spent(before: dict[str, float], store: Store) -> dict[str, float]:
    after = store.stage_seconds
    spent = {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
    return {stage: seconds for stage, seconds in spent.items() if seconds}

"""The engine's answer to a command: its result, and the state that it reflects.

A reply contains a context: the store, epoch and command number that the reply reflects. The context
must be read directly after the command was executed, on the same thread, before another command
changes the state. Therefore this module wraps the execution; the code that sends the reply would
read the context too late.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from traceback import clear_frames
from typing import Any, NamedTuple

from embstore.commands import COMMANDS, Effect, after_timeout
from embstore.engine.admin import context
from embstore.engine.engine import Engine
from embstore.errors import CapacityError, DeadlineError, EmbstoreError, OutcomeUnknownError
from embstore.results import AcknowledgedUpdate, Context, Digest
from embstore_server.path.caller import Caller
from embstore_server.telemetry.logs import event

ENGINE_STAGE = "engine"
"""The stage name for the whole time of a call on the engine."""

Work = Callable[[Engine], Any]


class Answered(NamedTuple):
    """A result, with the store, epoch and command number that it reflects."""

    value: Any
    context: Context
    stage_seconds: dict[str, float]
    mark: int = 0
    """The mark, a number of log records, up to which the command log must be durable before the
    answer is sent."""

    def finished(self, done: AcknowledgedUpdate) -> "Answered":
        """Return the answer of a call that waited for other ranks, after the last rank has
        called."""
        return self._replace(value=done, context=replace(self.context, command=done.command))


def answering(work: Work, instance: str, *, stages: bool = False) -> Callable[[Engine], Answered]:
    """Return a function that does the work and returns Answered, with stage times if requested."""

    def answered(engine: Engine) -> Answered:
        totals = engine.tables.stages
        before, begin = totals.seconds() if stages else {}, perf_counter()
        value = work(engine)
        seconds = perf_counter() - begin
        spent = {ENGINE_STAGE: seconds} | _spent(before, totals.seconds()) if stages else {}
        mark = engine.log.mark if engine.log is not None else 0
        state = context(engine, instance)
        if isinstance(value, Digest):  # a page of a scan shows the state in which the scan began
            state = replace(state, command=value.command)
        return Answered(value, state, spent, mark)

    return answered


def _spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    spent = {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
    return {stage: seconds for stage, seconds in spent.items() if seconds}


def answered_error(error: Exception, verb: str, caller: Caller | None = None) -> Exception:
    """Return the error that a call ends with; log exceptions that are bugs.

    A call that ran out of time ends with DeadlineError. A call that found no memory ends with
    CapacityError, or, if the call may have been applied, with OutcomeUnknownError.
    """
    who = caller.who if caller else {"verb": verb}
    command = COMMANDS.get(verb.removesuffix("Stream"))
    advice = after_timeout(command) if command else ""
    if isinstance(error, TimeoutError) and not isinstance(error, EmbstoreError):
        error = DeadlineError(f"{verb}: no answer in time{advice}")
    limited_by = verb, type(error).__name__, caller.principal.name if caller else ""
    lack = error.__cause__ if isinstance(error, CapacityError) else error
    if isinstance(lack, MemoryError):
        event(logging.WARNING, "no memory", reason=str(lack), **who, limited_by=limited_by)
    if isinstance(error, MemoryError):
        changes = command is not None and command.effect is not Effect.READS
        what = f"{verb}: no memory on the server{f': {error}' if str(error) else ''}"
        if changes:
            error = OutcomeUnknownError(f"{what}{advice}")
        else:
            less = "send less in a call, or start the server with less cache_bytes"
            error = CapacityError(f"{what}; {less}")
    if type(error) is EmbstoreError or not isinstance(error, EmbstoreError):
        event(logging.ERROR, "internal error", exc_info=error, **who, limited_by=limited_by)
    return error


def drop_trace(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes."""
    link: BaseException | None = error
    while link is not None:
        clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__

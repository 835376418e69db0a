"""The caller of a call, and the cost of the call, which is counted, and logged if the call is
slow."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from embstore.arrays import length
from embstore.commands import Command, Part, PartOf
from embstore_server.access.principals import ANYBODY, Principal
from embstore_server.path.concurrency import Place
from embstore_server.telemetry.logs import event
from embstore_server.telemetry.metrics import Metrics
from embstore_server.telemetry.slow_calls import SlowCall
from embstore_server.telemetry.tracing import TimedCall

if TYPE_CHECKING:
    from embstore_server.path.worker import Task


@dataclass
class Caller:
    """The caller of a call, its deadline, and its cost so far.

    `peer` is the client's address; the label and the ids are for the log. `audited` is the subject
    of an administrative call, for the audit log; it is empty for other calls.
    """

    verb: str
    peer: str
    deadline: float  # monotonic seconds
    label: str = ""
    request: str = ""
    traceparent: str = ""
    part_of: PartOf | None = None
    """The command of a cluster of which the call's command is a part; None: it was not split."""
    process: int = 0
    """The process that calls, if the server can observe the end of that process
    (`shared_memory.processes`)."""
    tables: Sequence[str] = ()
    """Names of the tables in the call's command."""
    keys: int = 0
    """The number of keys in the command; for a step's gradients, the number of rows."""
    session: str = ""
    rank: int | None = None
    step: int | None = None
    started: float = field(default_factory=monotonic)
    wait_s: float = 0.0
    run_s: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds in the engine's stages, and in other waits, such as "durable"."""
    brief: bool = False  # a call of a few keys, which the event loop may execute at once
    principal: Principal = ANYBODY
    shared_client: str = ""
    """The client name that callers without a name share; empty: such callers are told apart by
    their address."""
    audited: str = ""
    is_let_in: bool = False
    """Whether the caller has the right to its command.

    A caller can send any number of calls that it has no right to. Therefore the log contains at
    most one such call per minute for each verb, code and token.
    """
    gone: Callable[[], Awaitable[None]] | None = None
    """Waits until the client has disconnected; None: the call is cancelled when the client
    disconnects."""
    place: Place | None = None
    """The call's place among the running calls of its client (concurrency.py)."""
    received_bytes: int = 0
    sent_bytes: int = 0

    @property
    def client(self) -> str:
        """The client in whose queue the call waits: all connections of one token are one client."""
        return self.principal.name or self.shared_client or self.peer

    @property
    def who(self) -> dict[str, Any]:
        """The fields that identify a call in the log, whatever its outcome.

        A call without a request id gets one, by which it can be found in the log.
        """
        self.request = self.request or uuid4().hex[:16]
        named = {"session": self.session, "token": self.principal.name, "client": self.label}
        return {"verb": self.verb, "request": self.request} | {n: v for n, v in named.items() if v}

    def note(self, command: Command[Any]) -> None:
        """Keep the size of a command, but not the command itself: its arrays may be freed before
        the call ends."""
        self.keys = _key_count(command)
        self.step = getattr(command, "step", None)

    def spent(self, seconds: Mapping[str, float]) -> None:
        """Add seconds, by stage, to `stage_seconds`."""
        own = self.stage_seconds
        for stage, more in seconds.items():
            own[stage] = own.get(stage, 0.0) + more

    def queued(self, since: float) -> None:
        """Add the time since `since`, of the monotonic clock, to the time in the queue."""
        self.wait_s += monotonic() - since

    def worked(self, task: "Task") -> None:
        """Add the times of the call's task."""
        self.wait_s += task.wait_s
        self.run_s += task.run_s
        self.spent(task.stage_seconds)

    def waited(self, stage: str, since: float) -> None:
        """Add the time since `since`, of the monotonic clock, to a stage."""
        self.spent({stage: monotonic() - since})


def _key_count(part: Any) -> int:
    """Return the number of keys of a command, or of a part of it."""
    for field_name in _OF_A_ROW_EACH:
        found = getattr(part, field_name, None)
        if isinstance(found, Part):
            return _key_count(found)
        if found is not None:
            return length(found)
    inner = getattr(part, "tables", ()) or getattr(part, "steps", ()) or getattr(part, "ranks", ())
    count = 0
    for one in inner:
        count += _key_count(one) if isinstance(one, Part) else 0
    return count


_OF_A_ROW_EACH = ("keys", "positions", "inverse", "gradients")
"""Names of arrays in a command or its parts, in the order in which they are looked for: the first
one found has one entry per key."""


def observe(
    caller: Caller,
    code: str,
    metrics: Metrics,
    slow_call_ms: float,
    command: Command[Any] | None = None,
) -> None:
    """Count a call that was answered with `code`, and log it if it was slow.

    `command` is the call's command, if `caller.note` was not called with it.
    """
    seconds = monotonic() - caller.started
    is_slow = seconds * 1000 >= slow_call_ms
    limited_by = () if caller.is_let_in else (caller.verb, code, caller.principal.name)
    metrics.observe_call(
        caller.verb,
        code,
        seconds=seconds,
        wait_s=caller.wait_s,
        run_s=caller.run_s,
        received_bytes=caller.received_bytes,
        sent_bytes=caller.sent_bytes,
    )
    if caller.audited:
        event(
            logging.INFO,
            "audit",
            verb=caller.verb,
            on=caller.audited,
            code=code,
            token=caller.principal.name,
            peer=caller.peer,
            request=caller.request,
            limited_by=limited_by,
        )
    if is_slow:
        if command is not None:
            caller.note(command)
        caller.request = caller.who["request"]
        slow = _slow_call(caller, code, seconds)
        metrics.slow_calls.add(slow)
        said = {name: value for name, value in vars(slow).items() if name != "ended_at"}
        event(logging.WARNING, "slow call", **said, limited_by=limited_by)
    if metrics.traces is not None:
        if command is not None:
            caller.note(command)
        metrics.traces.ended(cast(TimedCall, caller), code)


def _slow_call(caller: Caller, code: str, seconds: float) -> SlowCall:
    return SlowCall(
        ended_at=time(),
        verb=caller.verb,
        code=code,
        ms=round(seconds * 1000, 1),
        wait_ms=round(caller.wait_s * 1000, 1),
        run_ms=round(caller.run_s * 1000, 1),
        stage_ms={n: round(s * 1000, 3) for n, s in caller.stage_seconds.items()},
        tables=_text_of(caller.tables),
        keys=caller.keys,
        received_bytes=caller.received_bytes,
        sent_bytes=caller.sent_bytes,
        token=caller.principal.name,
        client=caller.label,
        request=caller.request,
        traceparent=caller.traceparent,
        session=caller.session,
        rank=caller.rank,
        step=caller.step,
    )


def _text_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of the other names."""
    shown = ", ".join(names[:TABLES_SHOWN])
    more = len(names) - TABLES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


TABLES_SHOWN = 8

"""Who calls, and what the call cost: what a transport knows, and the log says of slow calls."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic

from embstore_server.access.principals import ANYBODY, Principal
from embstore_server.logs import event
from embstore_server.metrics import Metrics
from embstore_server.turnstile import Place


@dataclass
class Caller:
    """Who calls, by when, and what the call cost so far.

    `peer` is where it calls from; a label and ids are for the log. `audited` is what an operator is
    told that it was about, "" of a call that is not administration.
    """

    verb: str
    peer: str
    deadline: float  # monotonic seconds
    label: str = ""
    request: str = ""
    traceparent: str = ""
    rank: int | None = None
    step: int | None = None
    started: float = field(default_factory=monotonic)
    wait_s: float = 0.0
    run_s: float = 0.0
    brief: bool = False  # a few keys: may be done at once
    principal: Principal = ANYBODY
    shared_lane: str = ""
    """Of callers without a name; "": each has the lane of its peer."""
    audited: str = ""
    gone: Callable[[], Awaitable[None]] | None = None
    """Waits until its client has gone; None: the call is cancelled then."""
    place: Place | None = None
    """Where its work goes on (turnstile.py)."""
    received_bytes: int = 0
    sent_bytes: int = 0

    @property
    def lane(self) -> str:
        """Where it queues: lanes take turns, so one token's many connections count as one."""
        return self.principal.name or self.shared_lane or self.peer


def observe(caller: Caller, code: str, metrics: Metrics, slow_call_ms: float) -> None:
    """Keep the figures of a call that has been answered with `code`; log it if it was slow."""
    seconds = monotonic() - caller.started
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
        )
    if seconds * 1000 >= slow_call_ms:
        event(
            logging.WARNING,
            "slow call",
            verb=caller.verb,
            code=code,
            ms=round(seconds * 1000, 1),
            wait_ms=round(caller.wait_s * 1000, 1),
            run_ms=round(caller.run_s * 1000, 1),
            received_bytes=caller.received_bytes,
            sent_bytes=caller.sent_bytes,
            token=caller.principal.name,
            client=caller.label,
            request=caller.request,
            traceparent=caller.traceparent,
            rank=caller.rank,
            step=caller.step,
        )

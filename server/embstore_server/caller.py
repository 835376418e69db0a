"""Who calls, and what the call cost: what a transport knows, and the log says of slow calls."""

import logging
from dataclasses import dataclass, field
from time import monotonic

from embstore_server.logs import event
from embstore_server.metrics import Metrics


@dataclass
class Caller:
    """Who calls, by when, and what the call cost so far.

    `lane` is where it queues; a label and ids are for the log.
    """

    verb: str
    lane: str
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
    received_bytes: int = 0
    sent_bytes: int = 0


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
            client=caller.label,
            request=caller.request,
            traceparent=caller.traceparent,
            rank=caller.rank,
            step=caller.step,
        )

# ruff: noqa: RUF009 - the calls declare fields
"""The latest slow calls, for REST and the page; the log contains all slow calls.

A call is slow if it takes at least as long as the setting slow_call_ms. The latest SLOW_CALLS_KEPT
slow calls are kept in memory; labels and ids from callers are truncated, as everywhere.
"""

from collections import deque
from dataclasses import dataclass

from embstore.stats import gauge, text

SLOW_CALLS_KEPT = 100


@dataclass(frozen=True)
class SlowCall:
    """A call that took long."""

    ended_at: float = gauge("When it was answered, in seconds since the Unix epoch.")
    verb: str = text("What was called.", default="")
    code: str = text("gRPC status that it was answered with.", default="")
    ms: float = gauge("Milliseconds from its first byte to its answer.")
    wait_ms: float = gauge("Of these, in the queue.")
    run_ms: float = gauge("Of these, on the engine.")
    stage_ms: dict[str, float] = gauge(
        "Milliseconds by stage: of the engine; and durable, ranks, step, thread, see the guide.",
        label="stage",
        default=None,
    )
    tables: str = text("Tables that it names.", default="")
    keys: int = gauge("Keys that it has; of a step's gradients, rows.")
    received_bytes: int = gauge("Size of the request.")
    sent_bytes: int = gauge("Size of the reply.")
    token: str = text("Name of the token that it came with; empty: none.", default="")
    client: str = text("What the client calls itself.", default="")
    request: str = text("Id of the request, as in the log.", default="")
    traceparent: str = text("Trace that it belongs to.", default="")
    session: str = text("Session that it is of.", default="")
    rank: int | None = gauge("Rank in a session.", default=None)
    step: int | None = gauge("Step of a session.", default=None)


class SlowCalls:
    """The latest slow calls. Event loop only."""

    def __init__(self) -> None:
        self._kept: deque[SlowCall] = deque(maxlen=SLOW_CALLS_KEPT)

    def add(self, call: SlowCall) -> None:
        """Keep a call; if there are too many, drop the oldest call."""
        self._kept.append(call)

    def latest(self) -> list[SlowCall]:
        """Return the kept calls, the latest first."""
        return [*reversed(self._kept)]

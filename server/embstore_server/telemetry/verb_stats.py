# ruff: noqa: RUF009 - the calls declare fields
"""The counters of a verb's calls, declared once for REST's document and for metrics."""

from dataclasses import dataclass

from embstore.stats import counter, gauge, histogram


@dataclass
class LatencyStats:
    """Seconds, with quantiles estimated from the buckets of a histogram."""

    count: int = gauge("Calls.")
    mean: float = gauge("Mean.")
    p50: float = gauge("Median.")
    p95: float = gauge("Quantile of 95 %.")
    p99: float = gauge("Quantile of 99 %.")


@dataclass
class VerbStats:
    """The calls of one verb since the process began; metrics.py counts them.

    Sizes are those of messages, without headers of the transport. Waiting and engine time include
    only calls that reached the engine; zeros for other calls would hide these times.
    """

    codes: dict[str, int] = counter("Calls answered, by gRPC status.", metric="calls", label="code")
    received_bytes: int = counter("Size of requests.")
    sent_bytes: int = counter("Size of replies.")
    call: LatencyStats = histogram("Time of calls.", metric="call_seconds")
    wait: LatencyStats = histogram(
        "Time that calls waited for the engine.", metric="queue_wait_seconds"
    )
    engine: LatencyStats = histogram("Time that the engine worked.", metric="engine_seconds")

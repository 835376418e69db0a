"""What the process is doing now, read at once on the event loop, and what Prometheus sees of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric


@dataclass(frozen=True)
class State:
    """A moment of the service."""

    version: str
    instance: str
    started: float
    """Seconds since the Unix epoch."""
    ready: bool
    queue_calls: int
    """Calls that wait for the engine thread."""
    running_verb: str
    """Of the call that the engine thread works on; empty: of none."""
    inflight_bytes: int
    """Of requests and replies that the process holds."""
    remembered_calls: int
    """Answers kept for calls that may be sent again."""
    store_id: str = ""
    """Empty until the store is open; the two below are None until then."""
    epoch: int | None = None
    command: int | None = None


def state_families(state: State) -> Iterator[Metric]:
    """Yield the metrics of a moment."""
    yield InfoMetricFamily(
        "embstore_build",
        "What is served, and by which life of the process.",
        {"version": state.version, "instance": state.instance, "store_id": state.store_id},
    )
    for name, text, value in (
        ("start_time_seconds", "When the service began, since the Unix epoch.", state.started),
        ("ready", "1 while calls are served.", state.ready),
        ("queue_calls", "Calls that wait for the engine thread.", state.queue_calls),
        ("inflight_bytes", "Bytes of requests and replies held now.", state.inflight_bytes),
        ("remembered_calls", "Answers kept for calls sent again.", state.remembered_calls),
        ("epoch", "The store's epoch: it grows with every restore.", state.epoch),
        ("command", "Number of the last acknowledged mutating command.", state.command),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"embstore_{name}", text, float(value))
    running = GaugeMetricFamily(
        "embstore_running_calls", "1 for the call that the engine works on.", labels=["verb"]
    )
    if state.running_verb:
        running.add_metric([state.running_verb], 1)
    yield running

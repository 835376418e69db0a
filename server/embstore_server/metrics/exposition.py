"""One scrape: calls, the moment, the store's statistics and the process, as Prometheus's text.

The statistics are the engine thread's, and a scrape must not wait for a long call; so they may be
older than the rest, and `embstore_stats_age_seconds` says by how much. Before the first capture
they are absent, never zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from embstore_server.metrics.calls import Metrics
from embstore_server.metrics.frequency import frequency_families
from embstore_server.metrics.state import State, state_families
from embstore_server.metrics.storefigures import device_families, store_families


@dataclass(frozen=True)
class Captured:
    """A store's statistics and its device's facts, and how old they are."""

    stats: Mapping[str, Any]
    device_facts: Mapping[str, Any]
    age_s: float


class Exposition:
    """The metrics of one server as text; its registry is its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._process = ProcessCollector(registry=None)

    def text(self, state: State, captured: Captured | None) -> bytes:
        """Return a scrape in Prometheus's text format. Any thread.

        Parameters
        ----------
        captured : None before the first
        """
        registry = CollectorRegistry()
        for collector in (self._metrics, _Moment(state, captured), self._process):
            registry.register(collector)
        return generate_latest(registry)


class _Moment(Collector):
    """What one scrape knows of service and store."""

    def __init__(self, state: State, captured: Captured | None) -> None:
        self._state = state
        self._captured = captured

    def collect(self) -> Iterator[Metric]:
        yield from state_families(self._state)
        if self._captured is not None:
            yield GaugeMetricFamily(
                "embstore_stats_age_seconds",
                "Age of what is said of device, cache, tables, storage and stages.",
                self._captured.age_s,
            )
            yield from device_families(self._captured.stats["device"], self._captured.device_facts)
            yield from store_families(self._captured.stats)
            yield from frequency_families(self._captured.stats["frequency"])

"""One scrape of Prometheus: calls, process and all declared stats.

A stat without a value has no sample; Prometheus itself computes ratios. Counters only grow while
the process lives, with two exceptions. The counters of a pool start again when the last table of
its layout is dropped and another is created. The counters of accesses start again with ClearCounts.
Prometheus treats both exceptions as a restart. Labels are verbs, codes, stages, layouts, and names
of tables and live sessions; the number of each is bounded.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from embstore.stats import Stat, declared
from embstore_server.transports.rest.stats import ScrapedStats

_NUMBERS = ("counter", "gauge", "flag", "texts")


class Families(Collector):
    """The metrics of a document of stats: one family per declared stat, even if it has no
    sample."""

    def __init__(self, of: type, document: Mapping[str, Any]) -> None:
        self._families: dict[str, Any] = {}
        self._infos: dict[str, dict[str, str]] = {}
        self._declare(of, "", [])
        self._add(of, document, "", [])

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from self._families.values()
        for name, labels in self._infos.items():
            if any(labels.values()):
                yield InfoMetricFamily(f"embstore_{name}", f"Texts of the {name}.", labels)

    def _declare(self, of: type, prefix: str, labels: list[str]) -> None:
        """Make the families of a part of the document; `labels` are those of the parts around
        it."""
        stats = declared(of)
        labels = labels + [stat.label or stat.name for stat in stats if stat.kind == "label"]
        for stat in stats:
            own = [*stat.labels, stat.label] if stat.label else [*stat.labels]
            if stat.part is not None:
                is_list = get_origin(stat.type) is list
                self._declare(stat.part, stat.metric, labels if is_list else labels + own)
                if is_list and stat.label:
                    self._families[stat.label] = GaugeMetricFamily(
                        f"embstore_{stat.label}", stat.help, labels=[]
                    )
            elif stat.kind in _NUMBERS or (stat.kind == "text" and stat.label):
                make = CounterMetricFamily if stat.kind == "counter" else GaugeMetricFamily
                name = _metric(prefix, stat)
                self._families.setdefault(name, make(name, stat.help, labels=labels + own))

    def _add(self, of: type, document: Mapping[str, Any], prefix: str, labels: list[str]) -> None:
        """Add the samples of a part of the document; `labels` are the values of the labels of the
        parts around it."""
        stats = declared(of)
        labels = labels + [str(document[stat.name]) for stat in stats if stat.kind == "label"]
        for stat in stats:
            value = document.get(stat.name)
            if stat.kind == "info":
                self._infos.setdefault(stat.metric, {})[stat.name] = value or ""
            elif value is not None and stat.part is not None:
                self._add_part(stat, value, labels)
            elif value is not None:
                for own, number in _samples(stat, value):
                    family = self._families[_metric(prefix, stat)]
                    family.add_metric([*labels, *stat.labels.values(), *own], float(number))

    def _add_part(self, stat: Stat, value: Any, labels: list[str]) -> None:
        assert stat.part is not None
        if isinstance(value, list):
            for one in value:
                self._add(stat.part, one, stat.metric, labels)
            if stat.label:
                self._families[stat.label].add_metric([], len(value))
        elif stat.label:
            for name, one in value.items():
                self._add(stat.part, one, stat.metric, [*labels, name])
        else:
            self._add(stat.part, value, stat.metric, labels)


def _metric(prefix: str, stat: Stat) -> str:
    return "_".join(filter(None, ("embstore", prefix, stat.metric)))


def _samples(stat: Stat, value: Any) -> Iterator[tuple[list[str], float]]:
    """Yield for each sample the values of the stat's own labels, and the number."""
    match stat.kind:
        case "counter" | "gauge" if stat.label:
            yield from (([str(name)], number) for name, number in value.items())
        case "counter" | "gauge" | "flag":
            yield [], value
        case "texts":
            yield [], len(value)
        case "text" if stat.label:
            yield [value], 1


def exposition(calls: CollectorRegistry, stats: Mapping[str, Any], age_s: float | None) -> bytes:
    """Return a scrape in Prometheus's text format. Any thread.

    `calls` is the registry of `Metrics`. `stats` maps the names in `ScrapedStats` to the parts;
    missing parts have no metrics. `age_s` is the age of the store's stats; None: there are no such
    stats.
    """
    registry = CollectorRegistry()
    registry.register(Families(ScrapedStats, stats))
    ProcessCollector(registry=registry)
    if age_s is not None:
        age = Gauge("embstore_stats_age_seconds", "Age of the store's stats.", registry=registry)
        age.set(age_s)
    return generate_latest(calls) + generate_latest(registry)

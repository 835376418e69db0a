"""Prometheus: counters and histograms of calls, and the stats of store and process as metrics.

`Metrics` counts every call, by verb, as `VerbStats` declares. A call's seconds are those that its
listener measured, from its first byte to its answer. `exposition` is one scrape: calls, process and
all declared stats. A stat without a value has no sample; ratios Prometheus computes itself.

Counters only grow while the process lives, except those of a pool, which start again when the last
table of its layout is dropped and another is created, and those of counted accesses, with
ClearCounts; Prometheus treats both as a restart. Labels are verbs, codes, stages, layouts, and
names of tables and live sessions: all bounded.

Buckets follow the 1-2-5 series from 100 us to 60 s, so a bucket is at most 2.5 times its lower
bound (3 times for the last), and a quantile is at worst wrong by that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_origin

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from embstore.stats import Stat, declared
from embstore_server.stats import ScrapedStats, VerbStats

BOUNDS: tuple[float, ...] = (
    *(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
"""Upper bounds in seconds, each inside its bucket; one more bucket is for what is above."""


class Metrics:
    """The stats of calls. Counted on the event loop; read on any thread."""

    def __init__(self) -> None:
        # A metric of its creation for each series would double their number.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._metrics = {stat.name: self._made(stat) for stat in declared(VerbStats)}
        self._children: dict[tuple[str, ...], Any] = {}
        """The metric of each stat's name and labels; Prometheus's own lookup takes longer.

        Other threads go over a copy, because a call of a new verb or code adds to it.
        """

    def _made(self, stat: Stat) -> Any:
        labels = ["verb", stat.label] if stat.label else ["verb"]
        name, registry = f"embstore_{stat.metric}", self.registry
        if stat.kind == "histogram":
            return Histogram(name, stat.help, labels, buckets=BOUNDS, registry=registry)
        return Counter(name, stat.help, labels, registry=registry)

    def _of(self, *key: str) -> Any:
        child = self._children.get(key)
        if child is None:
            name, *labels = key
            child = self._children[key] = self._metrics[name].labels(*labels)
        return child

    def observe_call(
        self,
        verb: str,
        code: str,
        *,
        seconds: float,
        wait_s: float,
        run_s: float,
        received_bytes: int,
        sent_bytes: int,
    ) -> None:
        """Count one answered call; `run_s` is 0.0 of one that did not reach the engine thread.

        `verb` and `code` are labels, so of fixed sets: a method of the .proto file (of REST the one
        that means the same), and the name of a gRPC status.
        """
        self._of("codes", verb, code).inc()
        self._of("call", verb).observe(seconds)
        if run_s:
            self._of("wait", verb).observe(wait_s)
            self._of("engine", verb).observe(run_s)
        self._of("received_bytes", verb).inc(received_bytes)
        self._of("sent_bytes", verb).inc(sent_bytes)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the stats of each verb, as `VerbStats` declares them. Any thread."""
        verbs = sorted({verb for _, verb, *_ in tuple(self._children)})
        stats = declared(VerbStats)
        return {verb: {stat.name: self._value(stat, verb) for stat in stats} for verb in verbs}

    def _value(self, stat: Stat, verb: str) -> Any:
        if stat.label:
            keys = [key for key in tuple(self._children) if key[:2] == (stat.name, verb)]
            return {key[2]: _count(self._of(*key)) for key in keys}
        metric = self._of(stat.name, verb)
        return _latency(metric) if stat.kind == "histogram" else _count(metric)


def _count(counter: Any) -> int:
    ((total,),) = (family.samples for family in counter.collect())
    return int(total.value)


def _latency(histogram: Any) -> dict[str, float]:
    """Return count, mean, p50, p95 and p99; seconds, 0 where nothing was observed."""
    ((*buckets, count, total),) = (family.samples for family in histogram.collect())
    cumulative = [(float(bucket.labels["le"]), bucket.value) for bucket in buckets]
    mean = total.value / count.value if count.value else 0.0
    quantiles = {f"p{percent}": _quantile(cumulative, percent / 100) for percent in (50, 95, 99)}
    return {"count": int(count.value), "mean": mean, **quantiles}


def _quantile(cumulative: Sequence[tuple[float, float]], share: float) -> float:
    """Return what about `share` of all seconds are at most; linear inside a bucket.

    As Prometheus's histogram_quantile, so that a panel and REST agree; what lies above the last
    bound is answered with that bound.
    """
    *bounded, (_, count) = cumulative
    rank, below, lower = share * count, 0.0, 0.0
    for bound, up_to in bounded:
        if up_to > below and up_to >= rank:
            return lower + (bound - lower) * (rank - below) / (up_to - below)
        below, lower = up_to, bound
    return lower if below < rank else 0.0


_NUMBERS = ("counter", "gauge", "flag", "texts")


class Families(Collector):
    """The metrics of a document of stats: a family for each declaration, also without a sample."""

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
        """Make the families of a part, whose owners have these labels."""
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
        """Add the samples of a part, whose owners have these values of their labels."""
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
    """Yield the values of a stat's own labels, and the number, of each sample."""
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

    `calls` is the registry of `Metrics`; `stats` are by the names of `ScrapedStats`, and parts that
    are missing have no metrics; `age_s` is how old the store's are, None: there are none.
    """
    registry = CollectorRegistry()
    registry.register(Families(ScrapedStats, stats))
    ProcessCollector(registry=registry)
    if age_s is not None:
        age = Gauge("embstore_stats_age_seconds", "Age of the store's stats.", registry=registry)
        age.set(age_s)
    return generate_latest(calls) + generate_latest(registry)

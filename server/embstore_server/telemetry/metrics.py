"""Prometheus: counters and histograms of calls, by verb.

`Metrics` counts every call as `VerbStats` declares. The transport measures the seconds of a call,
from the first byte of the call to its answer.

Buckets follow the 1-2-5 series from 100 us to 60 s. The upper bound of a bucket is at most 2.5
times its lower bound (3 times for the last bucket), so a quantile is wrong by this factor at most.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from embstore.stats import declared
from embstore_server.telemetry.slow_calls import SlowCalls
from embstore_server.telemetry.verb_stats import VerbStats

if TYPE_CHECKING:
    from embstore_server.telemetry.tracing import Traces

BOUNDS: tuple[float, ...] = (
    *(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
"""The buckets' upper bounds in seconds, inclusive; one more bucket is for longer times."""
_PERCENT = (50, 95, 99)


class Metrics:
    """The stats of calls; a Prometheus collector. The event loop counts; any thread can read.

    The class has counters of its own, because Prometheus's counters take a lock for each number,
    which slows a call of one key. Here a number is only added up, and becomes a sample at a scrape.
    Other threads read without a lock: lists keep their length, and dicts, which can get new keys,
    are copied before they are read.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.slow_calls = SlowCalls()
        self.traces: Traces | None = None
        """The traces to which calls are added as spans; None: there are no traces. Set before the
        first call."""
        self._verbs: dict[str, _VerbCounts] = {}
        self.registry.register(self)

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
        """Count one answered call; `run_s` is 0.0 if the call did not reach the engine thread.

        `verb` and `code` become labels, so their values are from fixed sets. A verb is a method of
        the .proto file, or a route of REST for which there is no such method; a code is the name of
        a gRPC status.
        """
        counts = self._verbs.get(verb)
        if counts is None:
            counts = self._verbs[verb] = _VerbCounts()
        counts.codes[code] = counts.codes.get(code, 0) + 1
        counts.call.observe(seconds)
        if run_s:
            counts.wait.observe(wait_s)
            counts.engine.observe(run_s)
        counts.received_bytes += received_bytes
        counts.sent_bytes += sent_bytes

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the stats of each verb, as `VerbStats` declares them. Any thread."""
        return {verb: counts.document() for verb, counts in sorted(self._verbs.copy().items())}

    def histograms(self) -> dict[str, dict[str, list[int]]]:
        """Return the number of calls of each verb in each bucket of BOUNDS, and above the last
        bound. Any thread."""
        return {verb: counts.histograms() for verb, counts in sorted(self._verbs.copy().items())}

    def collect(self) -> Iterator[Metric]:
        """Yield a family of metrics for each declaration. Any thread."""
        verbs = sorted(self._verbs.copy().items())
        for stat in declared(VerbStats):
            labels = ["verb", stat.label] if stat.label else ["verb"]
            is_histogram = stat.kind == "histogram"
            make: Any = HistogramMetricFamily if is_histogram else CounterMetricFamily
            family = make(f"embstore_{stat.metric}", stat.help, labels=labels)
            for verb, counts in verbs:
                found = getattr(counts, stat.name)
                if is_histogram:
                    buckets = found.buckets()
                    if buckets[-1][1]:
                        family.add_metric([verb], buckets, found.total_s)
                elif stat.label:
                    for name, number in found.copy().items():
                        family.add_metric([verb, name], number)
                else:
                    family.add_metric([verb], found)
            yield family


class _Latencies:
    """The number of calls in each bucket, and the sum of the seconds of all calls."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return Prometheus's cumulative buckets."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))

    def document(self) -> dict[str, float]:
        """Return count, mean, p50, p95 and p99, in seconds; 0 if there was no call."""
        cumulative = list(zip((*BOUNDS, inf), accumulate(self.counts), strict=True))
        count = cumulative[-1][1]
        mean = self.total_s / count if count else 0.0
        quantiles = {f"p{percent}": _quantile(cumulative, percent / 100) for percent in _PERCENT}
        return {"count": count, "mean": mean, **quantiles}


class _VerbCounts:
    """The numbers of one verb, by the names in `VerbStats`."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.received_bytes = self.sent_bytes = 0
        self.call, self.wait, self.engine = _Latencies(), _Latencies(), _Latencies()

    def document(self) -> dict[str, Any]:
        return {
            "codes": self.codes.copy(),
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "call": self.call.document(),
            "wait": self.wait.document(),
            "engine": self.engine.document(),
        }

    def histograms(self) -> dict[str, list[int]]:
        parts = {"call": self.call, "wait": self.wait, "engine": self.engine}
        return {name: latencies.counts.copy() for name, latencies in parts.items()}


def _quantile(cumulative: Sequence[tuple[float, float]], share: float) -> float:
    """Return the quantile `share` of all seconds, interpolated linearly inside a bucket.

    The quantile is computed like Prometheus's histogram_quantile, so that a panel and REST agree.
    If it is above the last bound, that bound is returned.
    """
    *bounded, (_, count) = cumulative
    rank, below, lower = share * count, 0.0, 0.0
    for bound, up_to in bounded:
        if up_to > below and up_to >= rank:
            return lower + (bound - lower) * (rank - below) / (up_to - below)
        below, lower = up_to, bound
    return lower if below < rank else 0.0

"""Counts, bytes and seconds of every call, by verb; and the sessions that calls belong to.

`observe_call` runs once a call on the event loop, so it is a few list additions (about 1 us) and no
locks; Prometheus's own counters would take several times that. Figures of a verb exist from its
first call.

A call's seconds are those the border saw, from its first byte to its answer. Queue and engine
seconds are kept only of calls that reached the engine thread: zeros of calls that were refused
before, or never go there, would hide what those that wait do wait.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from embstore_server.metrics.histogram import Histogram
from embstore_server.metrics.sessions import SessionFacts, session_families


class _Verb:
    """What is kept of one verb. Bytes are those of messages, without headers of the transport."""

    __slots__ = ("call", "codes", "engine", "received_bytes", "sent_bytes", "wait")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.call = Histogram()
        self.wait = Histogram()
        self.engine = Histogram()
        self.received_bytes = 0
        self.sent_bytes = 0


_HISTOGRAMS = (
    ("call", "embstore_call_seconds", "Seconds of a call, as its border saw them."),
    ("wait", "embstore_queue_wait_seconds", "Seconds that a call waited for the engine thread."),
    ("engine", "embstore_engine_seconds", "Seconds that the engine thread worked on a call."),
)
_COUNTERS = (
    ("received_bytes", "embstore_received_bytes", "Bytes of requests received."),
    ("sent_bytes", "embstore_sent_bytes", "Bytes of replies sent."),
)


class Metrics(Collector):
    """The figures of calls, and a collector of them."""

    def __init__(self) -> None:
        self._verbs: dict[str, _Verb] = {}
        self.sessions: SessionFacts | None = None
        """Of the store, once it is open."""

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
        """Keep the figures of one answered call. Event loop only.

        Parameters
        ----------
        verb, code : of fixed sets, for they are labels: a method of the .proto file (of REST the
            one that means the same), and the name of a gRPC status
        run_s : 0.0 for a call that did not reach the engine thread
        """
        figures = self._verbs.get(verb)
        if figures is None:
            figures = self._verbs[verb] = _Verb()
        figures.codes[code] = figures.codes.get(code, 0) + 1
        figures.call.observe(seconds)
        if run_s:
            figures.wait.observe(wait_s)
            figures.engine.observe(run_s)
        figures.received_bytes += received_bytes
        figures.sent_bytes += sent_bytes

    def latencies(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return {verb: {"call", "wait", "engine": {"count", "mean", "p50", "p95", "p99"}}}.

        Seconds; quantiles are estimated from buckets, see `embstore_server.metrics.histogram`.
        """
        return {
            verb: {part: getattr(figures, part).summary() for part, _, _ in _HISTOGRAMS}
            for verb, figures in sorted(self._verbs.items())
        }

    def totals(self) -> dict[str, dict[str, int | dict[str, int]]]:
        """Return {verb: {"codes": {code: calls}, "received_bytes", "sent_bytes"}}."""
        return {
            verb: {
                "codes": dict(figures.codes),
                "received_bytes": figures.received_bytes,
                "sent_bytes": figures.sent_bytes,
            }
            for verb, figures in sorted(self._verbs.items())
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all verbs. Any thread: what the loop may change is copied first."""
        verbs = sorted(dict(self._verbs).items())
        yield self._calls(verbs)
        for part, name, text in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=["verb"])
            for verb, figures in verbs:
                histogram: Histogram = getattr(figures, part)
                family.add_metric([verb], histogram.cumulative(), histogram.sum_seconds)
            yield family
        for part, name, text in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["verb"])
            for verb, figures in verbs:
                counter.add_metric([verb], getattr(figures, part))
            yield counter
        if self.sessions is not None:
            yield from session_families(self.sessions)

    @staticmethod
    def _calls(verbs: list[tuple[str, _Verb]]) -> Metric:
        family = CounterMetricFamily(
            "embstore_calls", "Calls answered, by gRPC status.", labels=["verb", "code"]
        )
        for verb, figures in verbs:
            for code, count in dict(figures.codes).items():
                family.add_metric([verb, code], count)
        return family

"""Sends calls as spans of OpenTelemetry to a collector. This module contains all code for
OpenTelemetry.

The environment decides, as usual with OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT contains a collector's address, and the SDK reads the other
variables (headers, certificates, sampler, names of the service). Without these variables nothing is
imported.

A call is a span, and its stages are child spans with their own times (timed_calls.py):

    embstore.v1.Embstore/Lookup      its parent is the span of the client, by `traceparent`
        queue                        the call waited for the engine
        engine
            probe, read, insert...   stages, as for slow calls
        durable, ranks, step, thread

**No call waits for a collector.** The event loop only puts a call that has ended into a queue. A
thread makes the spans, asks the sampler, and sends the spans, one batch at a time. If a collector
does not answer, the queue fills up; calls that find the queue full are dropped, and counted. When
the server ends, the thread has LAST_S to send the remaining spans.

This module has its own provider of spans, and does not touch the provider of the process, with
which FastAPI makes spans of its own.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

from embstore.version import __version__, pip_install
from embstore_server.telemetry.logs import event

if TYPE_CHECKING:  # `embstore doctor` imports this module even without Numba
    from embstore_server.telemetry.laps import Lap

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")

QUEUE_CALLS_MAX = 4096
"""The largest number of queued calls: a busy server answers this many in some seconds, and they
take a few MiB."""
EVERY_S = 1.0
_BATCH_SPANS = 512
LAST_S = 2.0
"""Seconds to send the last spans; a collector that answers takes less time."""

_OF_THE_SERVER = {"UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""Codes that are errors of the server, by OpenTelemetry's conventions; other codes are the
caller's."""


def variable_of(environ: Mapping[str, str]) -> str:
    """Return the environment variable that requests traces; empty if there is none."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return ""
    return next((name for name in ENDPOINTS if environ.get(name, "").strip()), "")


def protocol_problem(environ: Mapping[str, str]) -> str:
    """Return the reason why traces cannot be sent by the protocol in the environment; empty if they
    can."""
    name = next((name for name in _PROTOCOLS if environ.get(name)), "")
    if name and environ[name] != _PROTOCOL:
        return f"expected {name} to be {_PROTOCOL} (port 4318 as a rule), found {environ[name]!r}"
    return ""


def begun(environ: Mapping[str, str]) -> "Traces | None":
    """Return the traces that the environment requests. None: it requests no traces, or making them
    failed.

    After a failure the log contains the reason. A missing collector does not prevent the server
    from serving.
    """
    variable = variable_of(environ)
    if not variable:
        return None
    problem = protocol_problem(environ)
    if not problem:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            traces = Traces(OTLPSpanExporter())
        except ModuleNotFoundError as exc:
            problem = f"{exc.name} is not installed: {pip_install('otel')}"
        except Exception as exc:  # the variables that the SDK reads can cause any error
            problem = str(exc) or type(exc).__name__
    if problem:
        event(logging.WARNING, "no traces", asked_by=variable, reason=problem)
        return None
    event(logging.INFO, "traces", asked_by=variable)
    return traces


class TimedCall(Protocol):
    """A call, and the begin and end of each of its stages."""

    verb: str
    started: float
    traceparent: str
    laps: "list[Lap]"

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the call's span."""


class _Call(NamedTuple):
    """A call that has ended, without its arrays."""

    verb: str
    code: str
    began: float  # monotonic seconds, as all times in this module
    ended: float
    traceparent: str
    laps: "tuple[Lap, ...]"
    attributes: dict[str, Any]


def _span_count(laps: "Sequence[Lap]") -> int:
    """Return the number of spans that a call with these laps has."""
    return 1 + len(laps) + sum(len(lap.parts) for lap in laps)


class Traces:
    """Sends calls that have ended to an exporter of the SDK."""

    def __init__(
        self,
        exporter: Any,
        *,
        queue_calls_max: int = QUEUE_CALLS_MAX,
        every_s: float = EVERY_S,
    ) -> None:
        """Start the thread that calls `exporter`, a SpanExporter."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from embstore_proto.verbs import SERVICE

        self._service = SERVICE.full_name
        ours = {"service.version": __version__, "service.instance.id": uuid4().hex}
        resource = Resource(ours).merge(Resource.create())  # values of the environment win
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "embstore"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracer = provider.get_tracer("embstore_server", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._exporter = exporter
        self._every_s = every_s
        self._queue_calls_max = queue_calls_max
        self._ended: deque[_Call] = deque()
        self._awake = Event()
        self._stopping = False
        self._sending = 0
        """The number of spans that the exporter is sending now."""
        self.spans = {"exported": 0, "failed": 0, "dropped": 0}
        """The numbers of spans that the collector accepted or refused, or that the queue
        dropped."""
        self._thread = Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def ended(self, caller: TimedCall, code: str) -> None:
        """Queue a call for sending; the call was answered with `code`. Event loop only."""
        if len(self._ended) >= self._queue_calls_max:
            self.spans["dropped"] += _span_count(caller.laps)
            return
        call = _Call(
            caller.verb,
            code,
            caller.started,
            monotonic(),
            caller.traceparent,
            tuple(caller.laps),
            caller.attributes(),
        )
        self._ended.append(call)
        if len(self._ended) == self._queue_calls_max // 2:
            self._awake.set()

    def stop(self, within_s: float = LAST_S) -> None:
        """Send the remaining spans, and end; after `within_s` seconds the rest is dropped. Any
        thread."""
        self._stopping = True
        self._awake.set()
        self._thread.join(within_s)
        left = self._sending + sum(_span_count(call.laps) for call in self._taken())
        self.spans["dropped"] += left
        self._exporter.shutdown()
        if any(self.spans.values()):
            event(logging.INFO, "traces ended", spans=self.spans)

    # The thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._awake.wait(self._every_s)
            self._awake.clear()
            is_last = self._stopping
            while self._ended:
                try:
                    self._export(self._batch())
                except Exception as exc:  # after any error, the next batch may still succeed
                    event(logging.WARNING, "traces not made", reason=str(exc) or type(exc).__name__)

    def _taken(self) -> Iterator[_Call]:
        """Remove the calls from the queue, and yield them. Any thread."""
        with suppress(IndexError):
            while True:
                yield self._ended.popleft()

    def _batch(self) -> list[Any]:
        """Return the spans of the next calls."""
        spans: list[Any] = []
        for call in self._taken():
            spans += self._spans(call)
            if len(spans) >= _BATCH_SPANS:
                break
        return spans

    def _export(self, spans: list[Any]) -> None:
        if not spans:  # no call was sampled
            return
        self._sending, outcome = len(spans), "failed"
        try:
            if self._exporter.export(spans).name == "SUCCESS":
                outcome = "exported"
        finally:
            self._sending = 0
            self.spans[outcome] += len(spans)

    def _spans(self, call: _Call) -> Iterator[Any]:
        """Yield the spans of a call, if it is sampled."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        clock_began = time() - monotonic()
        parent = self._propagator.extract({"traceparent": call.traceparent})
        name = f"{self._service}/{call.verb}"
        attributes = {
            "rpc.method": name,
            "rpc.response.status_code": call.code,
            **call.attributes,
        }
        if call.code != "OK":
            attributes["error.type"] = call.code
        span = self._tracer.start_span(
            name,
            parent,
            SpanKind.SERVER,
            attributes,
            start_time=_nanoseconds(clock_began + call.began),
        )
        if not span.is_recording():
            return
        yield from self._below(call.laps, set_span_in_context(span, parent), clock_began)
        if call.code in _OF_THE_SERVER:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(clock_began + call.ended))
        yield span

    def _below(self, laps: "Iterable[Lap]", parent: Any, clock_began: float) -> Iterator[Any]:
        """Yield a span for each lap, after the spans of the lap's parts."""
        from opentelemetry.trace import set_span_in_context

        for lap in laps:
            began = _nanoseconds(clock_began + lap.began)
            span = self._tracer.start_span(lap.stage, parent, start_time=began)
            yield from self._below(lap.parts, set_span_in_context(span, parent), clock_began)
            span.end(_nanoseconds(clock_began + lap.ended))
            yield span


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

"""One trace goes from a trainer's span over wire, queue and engine to a read of files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra 'otel'")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra 'otel'")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

import embstore
from embstore.errors import TableNotFoundError
from embstore.handles.store import Store
from embstore_client import background
from embstore_server.path.timed_calls import TimedCaller
from embstore_server.telemetry.laps import LAPS_MAX, Lap, LapTimes
from embstore_server.telemetry.tracing import Traces
from embstore_server.transports.rest.app import make_rest
from tests.service.access.tenants import token_of, write_tokens
from tests.service.otel import process_spans, trainer_span
from tests.serving import Server, on_loop, patient

DIM = 4
SERVICE = "embstore.v1.Embstore"
ROUNDED_NS = 1000
"""Times are floats of seconds until they are sent."""


class Traced:
    """A server of a store whose rows are in files; its spans, and those of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.exporter = InMemorySpanExporter()
        self.traces = Traces(self.exporter)
        with self._open() as store:
            sgd, zero = embstore.Sgd(0.1), embstore.Constant(0.0)
            ads = store.create_table("ads", dim=DIM, rows=100, optimizer=sgd, initializer=zero)
            ads.update([1, 2, 3], np.ones((3, DIM), np.float32))
            store.checkpoint("written")
        tokens = write_tokens(path / "tokens")
        settings = {"tokens": tokens, "socket": str(path / "s")}
        self.server = Server(self._open, path, self.traces, **settings)
        process_spans().clear()

    def _open(self) -> Store:
        data = self._path / "store"
        return embstore.open(data, device="cpu", cache_bytes=1 << 22, durability="commands")

    def connect(self, transport: str, **options: Any) -> Store:
        options = {"token": token_of("trainer"), "label": "job-7"} | options
        if transport == "shared_memory":
            return patient(f"unix:{self.server.socket}", **options)
        return patient(self.server.address, transport=transport, **options)

    def spans(self) -> dict[str, ReadableSpan]:
        """Stop, and return the latest span of each name: of the trainer's last trace, if it has
        made one."""
        self.server.stop()
        self.traces.stop(within_s=300.0)
        own, served = process_spans().get_finished_spans(), self.exporter.get_finished_spans()
        traces = {s.context.trace_id for s in (own[-1:] or served)}
        return {
            f"client {s.name}" if s.kind is SpanKind.CLIENT else s.name: s
            for s in (*own, *served)
            if s.context.trace_id in traces
        }


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    traced = Traced(tmp_path)
    yield traced
    traced.spans()


def check_below(span: ReadableSpan, parent: ReadableSpan) -> None:
    assert span.parent is not None
    assert span.parent.span_id == parent.context.span_id, (span.name, parent.name)
    assert span.context.trace_id == parent.context.trace_id


def check_within(span: ReadableSpan, parent: ReadableSpan) -> None:
    check_below(span, parent)
    assert span.start_time >= parent.start_time - ROUNDED_NS, span.name
    assert span.start_time <= span.end_time <= parent.end_time + ROUNDED_NS, span.name


@pytest.mark.parametrize("transport", ["grpc", "shared_memory", "auto"])
def test_a_trace_goes_from_a_trainers_span_to_a_read_of_files(traced, transport):
    with traced.connect(transport) as store:
        with trainer_span():
            store.lookup({"ads": [1, 2, 3]})
    counts = traced.server.store.stats()["cache"]["pools"]
    assert sum(pool["misses_log"] + pool["misses_base"] for pool in counts) > 0, "files were read"
    spans = traced.spans()
    lookup = f"{SERVICE}/Lookup"
    client, call, engine = spans[f"client {lookup}"], spans[lookup], spans["engine"]
    check_within(client, spans["train step"])
    check_below(call, client)
    assert call.parent is not None
    assert call.parent.is_remote
    assert call.kind is SpanKind.SERVER
    for name in ("queue", "engine"):
        check_within(spans[name], call)
    assert spans["queue"].end_time == engine.start_time
    for stage in ("unique", "probe", "read", "insert", "gather"):
        check_within(spans[stage], engine)
    assert {s.context.trace_id for s in spans.values()} == {client.context.trace_id}
    said = dict(call.attributes)
    assert said["embstore.tables"] == ("ads",)
    assert said["embstore.keys"] == 3
    assert said["embstore.token"] == "trainer"
    assert said["embstore.client"] == "job-7"
    taken = "grpc" if transport == "grpc" else "shared_memory"
    assert said["embstore.transport"] == client.attributes["embstore.transport"] == taken
    assert said["rpc.response.status_code"] == client.attributes["rpc.response.status_code"] == "OK"


def test_a_step_of_a_session_says_which_and_waits_in_its_span(traced):
    with traced.connect("grpc") as store:
        with store.session(["ads"], name="job", lookahead=2) as session:
            for step in session.steps([np.arange(5)] * 2, keys=lambda batch: {"ads": batch}):
                with trainer_span():
                    step.update({"ads": np.ones_like(step.lookup()["ads"])})
    spans = traced.spans()
    call = spans[f"{SERVICE}/UpdateStep"]
    check_below(call, spans[f"client {SERVICE}/UpdateStep"])
    said = dict(call.attributes)
    assert (said["embstore.session"], said["embstore.rank"]) == ("trainer:job", 0)
    assert said["embstore.step"] == 2
    check_within(spans["durable"], call)
    assert f"client {SERVICE}/RenewLease" not in spans, "nothing but what is in the span"


def test_a_refusal_is_an_error_at_the_client_and_named_at_the_server(traced):
    with traced.connect("grpc", token=token_of("operator")) as store:
        with trainer_span(), pytest.raises(TableNotFoundError):
            store.table("nothing")
    spans = traced.spans()
    client, call = (spans[f"{of}{SERVICE}/GetTable"] for of in ("client ", ""))
    assert client.status.status_code is StatusCode.ERROR
    assert client.attributes["error.type"] == "TableNotFoundError"
    assert call.status.status_code is StatusCode.UNSET, "it is the caller's"
    assert call.attributes["error.type"] == "NOT_FOUND"
    for span in (client, call):
        assert span.attributes["rpc.response.status_code"] == "NOT_FOUND"


def spans_of(caller: TimedCaller, code: str = "OK") -> tuple[ReadableSpan, ...]:
    """Return what a call that has ended is exported as."""
    exporter = InMemorySpanExporter()
    traces = Traces(exporter)
    traces.ended(caller, code)
    traces.stop(within_s=300.0)
    found: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    assert traces.spans == {"exported": len(found), "failed": 0, "dropped": 0}
    return found


@pytest.mark.parametrize("code", ["OK", "INVALID_ARGUMENT", "INTERNAL", "UNAVAILABLE"])
def test_what_is_the_servers_fault_is_an_error_of_its_span(code):
    (span,) = spans_of(TimedCaller("Lookup", "ipv4:127.0.0.1:1", 0.0), code)
    is_error = span.status.status_code is StatusCode.ERROR
    assert is_error == (code in ("INTERNAL", "UNAVAILABLE"))


@pytest.mark.parametrize("is_sampled", [False, True])
def test_what_the_trainer_does_not_sample_the_server_does_not(traced, is_sampled):
    process_spans()
    context = SpanContext(
        trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(int(is_sampled))
    )
    with traced.connect("grpc") as store, trace.use_span(NonRecordingSpan(context)):
        store.lookup({"ads": [1]})
    traced.spans()
    found = [s for s in traced.exporter.get_finished_spans() if s.context.trace_id == 0xABC]
    assert bool(found) == is_sampled


def test_a_call_outside_of_a_span_begins_a_trace_at_the_server(traced):
    with traced.connect("grpc") as store:
        store.lookup({"ads": [1]})
    spans = traced.spans()
    assert spans[f"{SERVICE}/Lookup"].parent is None
    assert f"client {SERVICE}/Lookup" not in spans


@pytest.mark.parametrize("traceparent", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_traceparent_that_names_nothing_is_as_none(traceparent):
    (span,) = spans_of(TimedCaller("Lookup", "rest:", 0.0, traceparent=traceparent))
    assert span.parent is None
    assert span.attributes["embstore.transport"] == "rest"


def test_rest_is_traced_by_its_header(traced):
    async def stats() -> int:
        transport = httpx.ASGITransport(make_rest(traced.server.service))
        headers = {
            "authorization": f"Bearer {token_of('operator')}",
            "traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01",
        }
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/api/v1/stats", headers=headers)).status_code

    assert on_loop(stats()) == 200
    traced.spans()
    found = [s for s in traced.exporter.get_finished_spans() if s.context.trace_id == 0xABC]
    (call,) = (s for s in found if s.kind is SpanKind.SERVER)
    assert (call.parent.span_id, call.attributes["embstore.transport"]) == (0xDEF, "rest")


def test_a_future_belongs_to_the_span_in_which_it_was_begun(traced):
    with traced.connect("grpc") as store, background(store) as behind:
        with trainer_span():
            call = behind.lookup({"ads": [1]})
        call.result()
    spans = traced.spans()
    check_below(spans[f"client {SERVICE}/Lookup"], spans["train step"])
    check_below(spans[f"{SERVICE}/Lookup"], spans[f"client {SERVICE}/Lookup"])


def test_a_trace_of_shared_memory_belongs_to_one_call(traced):
    with traced.connect("shared_memory") as store:
        ads = store.table("ads")
        with trainer_span():
            ads.lookup([1])
        ads.lookup([1])  # answered at once, over the same connection
    traced.spans()
    lookup = f"{SERVICE}/Lookup"
    found = [s for s in traced.exporter.get_finished_spans() if s.name == lookup]
    assert [s.parent is None for s in found] == [False, True]
    assert found[1].attributes["embstore.keys"] == 1


def test_laps_add_up_to_the_seconds_and_are_bounded():
    times = LapTimes()
    for _ in range(LAPS_MAX):
        for stage, seconds in (("read", 0.25), ("insert", 0.5)):
            times.add(stage, 0, int(seconds * 1e9))
    assert times == {"read": 0.25 * LAPS_MAX, "insert": 0.5 * LAPS_MAX}
    assert len(times.laps) == LAPS_MAX
    assert [lap.stage for lap in times.laps[:4]] == ["read", "insert", "read", "insert"]
    assert {round(lap.ended - lap.began, 6) for lap in times.laps} == {0.25, 0.5}


def test_stages_that_a_call_waited_in_are_spans_of_their_own():
    caller = TimedCaller("Update", "ipv4:127.0.0.1:1", 0.0)
    parts = (Lap("apply", caller.started + 1, caller.started + 2),)
    caller.laps += [
        Lap("engine", caller.started, caller.started + 3, parts),
        Lap("durable", caller.started + 3, caller.started + 4),
    ]
    spans = {s.name: s for s in spans_of(caller)}
    check_below(spans["engine"], spans[f"{SERVICE}/Update"])
    check_below(spans["durable"], spans[f"{SERVICE}/Update"])
    check_within(spans["apply"], spans["engine"])
    assert round((spans["durable"].end_time - spans["durable"].start_time) / 1e9, 6) == 1.0

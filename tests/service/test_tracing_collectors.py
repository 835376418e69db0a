"""Spans reach a collector by OTLP/HTTP; and one that does not answer slows or stops no server."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra 'otel'")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra 'otel'")

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

import embstore
from embstore.handles.store import Store
from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from embstore_server.telemetry import tracing
from embstore_server.telemetry.tracing import ENDPOINTS, Traces
from embstore_server.transports.rest.stats import process_stats
from tests.service.otel import BlackHole, Collector, process_spans, trainer_span
from tests.serving import Server, patient
from tests.style.sources import ROOT

LOOKUP = "embstore.v1.Embstore/Lookup"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", *ENDPOINTS):
        monkeypatch.delenv(name, raising=False)


def with_a_table(store: Store) -> Store:
    sgd, zero = embstore.Sgd(0.1), embstore.Constant(0.0)
    store.create_table("ads", dim=4, rows=100, optimizer=sgd, initializer=zero)
    return store


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def black_hole() -> Iterator[BlackHole]:
    with BlackHole() as black_hole:
        yield black_hole


def test_a_server_sends_its_spans_to_the_collector_that_the_environment_names(
    tmp_path, collector, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with ServerProcess(tmp_path) as process:
        with connect(process.address, transport="grpc", connect_timeout_s=300.0) as store:
            with_a_table(store)
            with trainer_span() as span:
                store.lookup({"ads": [1, 2]})
                trace_id = span.get_span_context().trace_id
        call = collector.wait_for(LOOKUP)
        assert process.stop() == 0
        assert any('"event": "traces"' in line for line in process.log)
    own = [s for s in process_spans().get_finished_spans() if s.context.trace_id == trace_id]
    client = next(s for s in own if s.name == LOOKUP)
    assert int.from_bytes(call.trace_id, "big") == trace_id
    assert int.from_bytes(call.parent_span_id, "big") == client.context.span_id
    assert [s.parent_span_id for s in collector.named("engine") if s.trace_id == call.trace_id] == [
        call.span_id
    ]
    (resource, *_) = collector.resources
    assert resource["service.name"] == "embstore"
    assert resource["service.version"] == embstore.__version__
    assert resource["deployment.environment.name"] == "test"


def test_what_a_stopping_server_has_done_last_is_sent(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rows")
    with ServerProcess(tmp_path) as process:
        with connect(process.address, transport="grpc", connect_timeout_s=300.0) as store:
            with_a_table(store).lookup({"ads": [1, 2]})
        assert process.stop() == 0
    assert collector.named(LOOKUP)
    assert collector.resources[0]["service.name"] == "rows"


def test_a_collector_that_does_not_answer_stops_no_call_and_spans_are_counted(tmp_path, black_hole):
    queue_calls = 8
    exporter = OTLPSpanExporter(f"{black_hole.url}/v1/traces", timeout=300.0)
    traces = Traces(exporter, queue_calls_max=queue_calls, every_s=0.001)

    def open_store() -> Store:
        return with_a_table(embstore.open(tmp_path / "store", device="cpu", cache_bytes=1 << 22))

    calls = 100
    with Server(open_store, tmp_path, traces) as server, patient(server.address) as store:
        ads = store.table("ads")
        black_hole.swallow()  # from here on the thread of traces waits for an answer
        for _ in range(calls):
            ads.update([1], np.ones((1, 4), np.float32))
        assert ads.t == calls
        counts = process_stats(server.service, None)["service"]["trace_spans"]
    assert counts["dropped"] >= calls - queue_calls, "of each call at least one"
    assert counts["exported"] == counts["failed"] == 0
    before = counts["dropped"]
    traces.stop(within_s=0.001)  # the thread still waits; the process may end
    assert traces.spans["dropped"] >= before + queue_calls


def test_a_server_stops_though_its_collector_does_not_answer(tmp_path, black_hole, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", black_hole.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
    with ServerProcess(tmp_path) as process:
        with connect(process.address, transport="grpc", connect_timeout_s=300.0) as store:
            with_a_table(store).lookup({"ads": [1, 2]})
        black_hole.swallow()
        assert process.stop() == 0
        ended = json.loads(process.log[-1])
    assert ended["event"] == "traces ended"
    assert ended["spans"]["dropped"] > 0


def test_a_collector_that_refuses_is_counted_as_failed():
    with BlackHole() as closed:
        url = closed.url
    exporter = OTLPSpanExporter(f"{url}/v1/traces", timeout=0.01)
    traces = Traces(exporter, every_s=0.001)
    traces.ended(tracing_caller(), "OK")
    traces.stop(within_s=300.0)
    assert traces.spans == {"exported": 0, "failed": 1, "dropped": 0}


def test_an_exporter_that_raises_ends_nothing(caplog):
    class Broken:
        calls = 0

        def export(self, spans: object) -> None:
            self.calls += 1
            raise OSError("no route")

        def shutdown(self) -> None:
            pass

    broken = Broken()
    traces = Traces(broken, every_s=300.0, queue_calls_max=1)
    traces.ended(tracing_caller(), "OK")
    traces.stop(within_s=300.0)
    assert broken.calls == 1
    assert traces.spans["failed"] == 1


def tracing_caller() -> object:
    from embstore_server.path.timed_calls import TimedCaller

    return TimedCaller("Lookup", "ipv4:127.0.0.1:1", 0.0)


# What asks for traces, and what is loaded


@pytest.mark.parametrize(
    ("environ", "asks"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (dict.fromkeys(ENDPOINTS, "http://c:4318"), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({ENDPOINTS[0]: "http://c", "OTEL_SDK_DISABLED": "True"}, ""),
        ({ENDPOINTS[0]: "http://c", "OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
def test_the_environment_says_whether_traces_are_made(environ, asks):
    assert tracing.variable_of(environ) == asks


def test_another_protocol_is_told_and_the_server_serves(caplog):
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    with caplog.at_level(logging.WARNING, "embstore"):
        assert tracing.begun(environ) is None
    (record,) = caplog.records
    assert record.getMessage() == "no traces"
    assert "http/protobuf" in vars(record)["embstore_fields"]["reason"]


LOADED = """if True:
    import os, sys
    import embstore_server.host.app
    from embstore_server.telemetry import tracing
    assert tracing.begun({}) is None
    unwanted = ("opentelemetry.sdk", "opentelemetry.exporter")
    print(*sorted(name for name in sys.modules if name.startswith(unwanted)))
"""

CALLED = """if True:
    import sys
    from embstore_client import background, connect
    with connect(sys.argv[1], transport="grpc", connect_timeout_s=300.0) as store:
        store.lookup({"ads": [1]})
        with background(store) as behind:
            behind.lookup({"ads": [1]}).result()
    print(*sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def run(code: str, *arguments: str) -> str:
    words = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_server_that_nobody_asks_for_traces_loads_no_sdk():
    assert run(LOADED) == ""


def test_a_client_without_a_span_loads_nothing(server):
    loaded = run(CALLED, server.address)
    assert loaded == "opentelemetry", "a namespace, in which the SDK was looked for, has no code"

"""A collector of OTLP/HTTP on loopback, one that never answers, and the spans of this process.

All that is here is real: the SDK, its exporters and what they send. Needs the extra `otel`.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_TIMEOUT_S = 300.0


@cache
def process_spans() -> InMemorySpanExporter:
    """Return where the spans of this process go, from when it is first asked for."""
    exporter = InMemorySpanExporter()
    provider: Any = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # else an example of the guide has set one
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@contextmanager
def trainer_span(name: str = "train step") -> Iterator[Any]:
    """Be in a span of a trainer."""
    process_spans()
    with trace.get_tracer("trainer").start_as_current_span(name) as span:
        yield span


class Collector:
    """Takes spans by OTLP/HTTP; a context manager."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                reply = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._came:
            for of_resource in request.resource_spans:
                named = {a.key: a.value.string_value for a in of_resource.resource.attributes}
                self.resources.append(named)
                for scope in of_resource.scope_spans:
                    self.spans += scope.spans
            self._came.notify_all()

    def wait_for(self, name: str) -> Any:
        """Return a span of this name, when it has come."""
        with self._came:
            assert self._came.wait_for(lambda: self.named(name), _TIMEOUT_S), name
            return self.named(name)[0]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class BlackHole:
    """Takes connections and what is sent over them, and never answers; a context manager."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._taken: list[socket.socket] = []

    def swallow(self) -> None:
        """Wait until somebody has begun to send something."""
        self._listener.settimeout(_TIMEOUT_S)
        connection, _ = self._listener.accept()
        self._taken.append(connection)
        connection.settimeout(_TIMEOUT_S)
        assert connection.recv(1)

    def __enter__(self) -> "BlackHole":
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self._taken, self._listener):
            one.close()

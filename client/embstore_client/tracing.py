"""Calls as spans of OpenTelemetry; all of the client's tracing is here.

A call within a trace span of the trainer becomes one child span, which covers all attempts. The
server receives the id of this child span as a `traceparent` (W3C Trace Context): in the metadata of
gRPC or, in shared memory, in a frame before the call. A call outside of any span is not traced.
Such calls come from background threads: lease renewals, announcements of coming steps, and finished
steps that are sent later. Each of these calls would be a trace by itself.

This module does not import OpenTelemetry: a trainer that has a span has imported OpenTelemetry.
Whether its SDK is installed is checked when a client connects. If it is not, the client uses the
ordinary transport, without tracing. The tracer provider is that of the process, which can set it at
any time.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from embstore import __version__
from embstore_client.transport import Transport
from embstore_proto.addresses import split_address
from embstore_proto.status import answer_of
from embstore_proto.verbs import SERVICE, Answer, Outgoing, Verb

T = TypeVar("T")


def is_installed() -> bool:
    """Return whether the SDK of OpenTelemetry is installed; without it there are no spans."""
    return bool(find_spec("opentelemetry") and find_spec("opentelemetry.sdk"))


def traceparent() -> str:
    """Return the W3C `traceparent` of the current span; "" if there is no span."""
    span = _current_span()
    if span is None:
        return ""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"


def in_context(verb: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `verb` in another thread, within the span that is current in
    this thread now."""
    return partial(copy_context().run, verb)


def _current_span() -> Any:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span()
    return span if span.get_span_context().is_valid else None


class TracedTransport(Transport):
    """A transport whose calls are spans, if they are made within a span."""

    def send(self, verb: Verb, request: Outgoing, **options: Any) -> Answer:
        """Send a command as `Transport.send` does, in a child span if there is a span."""
        with nullcontext() if _current_span() is None else self._span(verb):
            return super().send(verb, request, **options)

    def receive(
        self,
        verb: Verb,
        request: Outgoing,
        take: Callable[[Iterator[Answer]], T],
        **options: Any,
    ) -> T:
        """Send a command as `Transport.receive` does, in a child span if there is a span."""
        with nullcontext() if _current_span() is None else self._span(verb):
            return super().receive(verb, request, take, **options)

    @contextmanager
    def _span(self, verb: Verb) -> Iterator[None]:
        from opentelemetry.trace import SpanKind, Status, StatusCode, get_tracer

        name = f"{SERVICE.full_name}/{verb.name}"
        known = {"rpc.method": name, "embstore.transport": "grpc"} | self._server
        if self.wire.shares_memory:
            known["embstore.transport"] = "shared_memory"
        else:
            known["rpc.system.name"] = "grpc"
        span = get_tracer("embstore_client", __version__).start_as_current_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=known,
            record_exception=False,  # the enclosing span records it, if it is not caught
            set_status_on_exception=False,
        )
        with span as current:
            try:
                yield
            except BaseException as exc:
                current.set_attribute("rpc.response.status_code", answer_of(exc).code.name)
                current.set_attribute("error.type", type(exc).__name__)
                current.set_status(Status(StatusCode.ERROR))
                raise
            current.set_attribute("rpc.response.status_code", "OK")

    @property
    def _server(self) -> dict[str, Any]:
        if self.address.startswith("unix:"):
            return {"server.address": self.address.removeprefix("unix:")}
        host, port = split_address(self.address)
        return {"server.address": host, "server.port": port}

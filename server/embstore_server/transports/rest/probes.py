"""/healthz, /readyz and /metrics: these are for monitors of the process, so their paths contain no
version of the API.

A scrape must be answered even if the engine executes a long call. A scrape queues a request for the
store's stats like any call, but waits at most CAPTURE_S (or half of its own timeout). After that
time, the answer contains the last stats that arrived, with their age. Stats of sessions need no
engine and are always fresh: they show which ranks wait for a busy engine.
"""

import asyncio
from time import monotonic
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from embstore.errors import EmbstoreError
from embstore_server.path.service import Service
from embstore_server.transports.rest.calls import Calling, CallRoute
from embstore_server.transports.rest.exposition import exposition
from embstore_server.transports.rest.models import REFUSED
from embstore_server.transports.rest.stats import process_stats

CAPTURE_S = 2.0
"""The most seconds that a scrape waits for the store's stats. This is well below the 10 s that
Prometheus allows a scrape by default."""


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"] = Field(default="ok", description="Always")


class Readiness(BaseModel):
    """Whether calls are served."""

    ready: bool = Field(description="Calls are served, writes too")
    reason: str = Field(description="Why not; empty if they are")


class Scrapes:
    """Answers scrapes, and keeps the store's stats for the next scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stats: dict[str, Any] | None = None
        self._captured_at = 0.0  # monotonic seconds

    async def text(self, call: Calling) -> bytes:
        """Return the metrics as text. A thread makes the text, because thousands of tables take
        long."""
        call.check_may_read_stats()
        await self._capture(call)
        stats = dict(self._stats or {})
        age_s = None if self._stats is None else monotonic() - self._captured_at
        stats |= process_stats(self._service, self._stats)
        if self._service.is_open:
            stats["sessions"] = self._service.engine.sessions.stats()
        return await asyncio.to_thread(exposition, self._service.metrics.registry, stats, age_s)

    async def _capture(self, call: Calling) -> None:
        now = monotonic()
        patience_s = min(CAPTURE_S, (call.caller.deadline - now) / 2)
        call.caller.deadline = now + patience_s
        try:
            async with asyncio.timeout(patience_s):
                answered = await call.stats()
        except (EmbstoreError, TimeoutError):
            return  # opening, busy, overloaded, failed: other metrics show which
        self._stats, self._captured_at = answered.value, monotonic()


def add_probes(app: FastAPI, service: Service, needed: list[Any]) -> None:
    """Add the three routes; metrics need the dependencies of a call."""
    scrapes = Scrapes(service)
    probes = APIRouter(tags=["probes"])
    calls = APIRouter(
        route_class=CallRoute, tags=["probes"], responses=REFUSED, dependencies=needed
    )

    @probes.get("/healthz")
    async def get_health() -> Health:
        """Answer that the process is alive."""
        return Health()

    @probes.get("/readyz", responses={503: {"model": Readiness, "description": "Not now"}})
    async def get_readiness(response: Response) -> Readiness:
        """Return whether calls are served, and the reason if they are not."""
        reason = service.unready
        response.status_code = 503 if reason else 200
        return Readiness(ready=not reason, reason=reason)

    @calls.get(
        "/metrics",
        name="GetMetrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def get_metrics(call: Calling) -> Response:
        """Return all stats in Prometheus's text format."""
        return Response(await scrapes.text(call), headers={"content-type": CONTENT_TYPE_LATEST})

    app.include_router(probes)
    app.include_router(calls)

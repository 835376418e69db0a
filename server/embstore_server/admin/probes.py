"""/healthz, /readyz and /metrics: for what watches the process, so outside of the API's version.

A scrape must answer while the engine works on a long call. It asks for the store's statistics in
the queue as anyone does, but waits CAPTURE_S for them at most (or half of the time that the scrape
gives), and else tells the last ones that it got, with their age.
"""

import asyncio
from time import monotonic, time
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import Field

from embstore.errors import EmbstoreError
from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.models import Reply
from embstore_server.admin.moment import state_of, uptime_s
from embstore_server.metrics import Exposition
from embstore_server.metrics.exposition import Captured
from embstore_server.service import Service

CAPTURE_S = 2.0
"""Prometheus gives a scrape 10 s by default, and shows best what is on time."""


class Health(Reply):
    """The process is alive."""

    status: Literal["ok"] = Field(default="ok", description="Always")


class Readiness(Reply):
    """Whether calls are served."""

    ready: bool
    reason: str = Field(description="Why not; empty when they are")


class Scrapes:
    """What Prometheus is told, and what is kept from one scrape to the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._exposition = Exposition(service.metrics)
        self._started = time() - uptime_s(service)
        self._found: tuple[dict[str, Any], dict[str, Any]] | None = None  # statistics, device
        self._captured_at = 0.0  # monotonic seconds

    async def text(self, call: Calling) -> bytes:
        """Return the metrics as text, made in a thread: of thousands of tables it takes a while."""
        await self._capture(call)
        state = state_of(self._service, self._started)
        captured = None
        if self._found is not None:
            captured = Captured(*self._found, monotonic() - self._captured_at)
        return await asyncio.to_thread(self._exposition.text, state, captured)

    async def _capture(self, call: Calling) -> None:
        now = monotonic()
        patience_s = min(CAPTURE_S, (call.caller.deadline - now) / 2)
        call.caller.deadline = now + patience_s
        try:
            async with asyncio.timeout(patience_s):
                answered = await call.run(lambda store: (store.stats(), store.device_facts))
        except (EmbstoreError, TimeoutError):
            return  # opening, busy, overloaded, failed: other metrics say which
        self._found, self._captured_at = answered.value, monotonic()


def add_probes(app: FastAPI, service: Service) -> None:
    """Add the three routes."""
    scrapes = Scrapes(service)
    probes = APIRouter(tags=["probes"])
    calls = APIRouter(route_class=CallRoute, tags=["probes"])

    @probes.get("/healthz")
    async def get_health() -> Health:
        """Say that the process is alive: it answers."""
        return Health()

    @probes.get("/readyz", responses={503: {"model": Readiness, "description": "Not now"}})
    async def get_readiness(response: Response) -> Readiness:
        """Say whether calls are served, and if not, why."""
        reason = service.not_ready
        response.status_code = 503 if reason else 200
        return Readiness(ready=not reason, reason=reason)

    @calls.get(
        "/metrics",
        name="GetMetrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def get_metrics(call: Calling) -> Response:
        """Return all figures in Prometheus's text format."""
        return Response(await scrapes.text(call), headers={"content-type": CONTENT_TYPE_LATEST})

    app.include_router(probes)
    app.include_router(calls)

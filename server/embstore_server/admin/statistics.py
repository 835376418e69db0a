"""GET /api/v1/stats: everything that the store and the service know of themselves."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.figures import (
    Cache,
    Memory,
    ServiceFigures,
    Stage,
    StorageFigures,
    TableFigures,
    VerbFigures,
)
from embstore_server.admin.models import Context, Reply
from embstore_server.admin.moment import resident_bytes, running_verb, uptime_s
from embstore_server.answers import Answered
from embstore_server.metrics import Metrics
from embstore_server.service import Service

router = APIRouter(route_class=CallRoute, tags=["figures"])


class Stats(Reply):
    """Figures of the store at one command, and of the service right after it."""

    context: Context
    device: str = Field(description="What keeps and computes the rows")
    policy: str = Field(description="Which rows leave the cache first")
    read_only: bool
    service: ServiceFigures
    memory: Memory
    verbs: dict[str, VerbFigures] = Field(description="By verb, those that were called")
    cache: Cache
    tables: dict[str, TableFigures] = Field(description="By name")
    storage: StorageFigures
    stages: dict[str, Stage] = Field(description="By name, since the store was opened")


@router.get("/stats", name="GetStats")
async def get_stats(call: Calling) -> Stats:
    """Return all figures.

    The engine counts the rows of each table anew: ask every few seconds, not all the time.
    """
    answered = await call.run(lambda store: store.stats())
    return _stats(answered, call.service)


def _stats(answered: Answered, service: Service) -> Stats:
    stats: Mapping[str, Any] = answered.value
    return Stats(
        context=Context.of(answered.context),
        device=stats["device"],
        policy=stats["policy"],
        read_only=stats["read_only"],
        service=_service_figures(service),
        memory=Memory(
            process_resident_bytes=resident_bytes(),
            cache_bytes=stats["cache"]["memory_bytes"],
            log_index_bytes=stats["storage"]["log_index_bytes"],
            inflight_bytes=service.inflight.held_bytes,
        ),
        verbs=_verbs(service.metrics),
        cache=Cache.of(stats["cache"]),
        tables={name: TableFigures.of(table) for name, table in stats["tables"].items()},
        storage=StorageFigures.of(stats["storage"]),
        stages={name: Stage(**stage) for name, stage in stats["stages"].items()},
    )


def _service_figures(service: Service) -> ServiceFigures:
    return ServiceFigures(
        uptime_s=uptime_s(service),
        queue_calls=service.worker.waiting_calls,
        running_verb=running_verb(service) or None,
        inflight_bytes=service.inflight.held_bytes,
        remembered_calls=service.once.remembered_calls,
    )


def _verbs(metrics: Metrics) -> dict[str, VerbFigures]:
    latencies = metrics.latencies()
    return {
        verb: VerbFigures.model_validate({**totals, **latencies[verb]})
        for verb, totals in metrics.totals().items()
    }

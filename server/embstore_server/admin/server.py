"""GET /api/v1/server: what serves, with which settings and limits, and how busy it is."""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from embstore.errors import StoreClosedError
from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.models import Context, Reply
from embstore_server.admin.moment import opened_store, running_verb, uptime_s
from embstore_server.rpc import server_info

router = APIRouter(route_class=CallRoute, tags=["server"])


class ServerLimits(Reply):
    """Named bounds; a call beyond one is refused by its name."""

    call_bytes_max: int = Field(description="Of one call's arrays, results included")
    unary_bytes_max: int = Field(description="Of a unary gRPC message")
    chunk_bytes_max: int = Field(description="Of a streamed message's piece")
    tables_max: int = Field(description="Tables of the store")
    log_rows_max: int = Field(description="Rows in the log's index")
    metadata_bytes_max: int = Field(description="Of a checkpoint's metadata as JSON")
    queue_calls_max: int = Field(description="Calls that wait for the engine")
    inflight_bytes_max: int = Field(description="Of requests and replies held at once")
    remembered_calls_max: int = Field(description="Answers remembered of one client")
    call_timeout_s: float = Field(description="Seconds, of a call that brings no deadline")
    call_timeout_max_s: float = Field(description="Seconds; a later deadline is cut to this")


class DeviceInfo(Reply):
    """What keeps and computes the rows, as it was when the statistics were last asked for.

    A fact that the device does not have is null.
    """

    model: str | None = Field(None, description="As its maker calls it")
    memory_bytes: int | None = Field(None, description="Of the whole device; of cpu: the host's")
    memory_free_bytes: int | None = Field(None, description="Of these, what nobody uses")
    scratch_bytes: int | None = Field(None, description="Memory for calls, beside cache_bytes")
    threads: int | None = Field(None, description="That share a call")
    multiprocessors: int | None = Field(None, description="Of a GPU")
    driver_version: str | None = Field(None, description="Of a GPU's driver")
    runtime_version: str | None = Field(None, description="Of the CUDA runtime in use")
    compile_seconds: float | None = Field(None, description="That compiling kernels took")


class Queue(Reply):
    """How busy the server is."""

    calls: int = Field(description="That wait for the engine")
    running_verb: str | None = Field(description="That the engine works on; null: none")
    inflight_bytes: int = Field(description="Of requests and replies held")


class Server(Reply):
    """What serves."""

    context: Context
    version: str = Field(description="Of embstore")
    ready: bool
    reason: str = Field(description="Why calls are not served; empty when they are")
    uptime_s: float = Field(description="Seconds since the service began")
    device: str = Field(description="What keeps and computes the rows: cpu or cuda:N")
    device_info: DeviceInfo = Field(description="What the device is and has")
    policy: str = Field(description="Which rows leave the cache first")
    cache_bytes: int = Field(description="The cache's budget, now")
    read_only: bool
    optimizers: list[str] = Field(description="Kinds that a table may have")
    initializers: list[str] = Field(description="Kinds that a table may have")
    settings: dict[str, Any] = Field(description="As the server was told when it began")
    limits: ServerLimits
    queue: Queue


@router.get("/server", name="GetServerInfo")
async def get_server(call: Calling) -> Server:
    """Return what serves. Needs no engine: it is answered also while a long call runs."""
    service = call.service
    store = opened_store(service)
    if store is None:
        raise StoreClosedError(service.not_ready)
    told = server_info(service)
    return Server(
        context=Context.of(told.context),
        version=told.version,
        ready=not service.not_ready,
        reason=service.not_ready,
        uptime_s=uptime_s(service),
        device=told.device,
        device_info=DeviceInfo(**store.device_facts),
        policy=told.policy,
        cache_bytes=told.cache_bytes,
        read_only=told.read_only,
        optimizers=list(told.optimizers),
        initializers=list(told.initializers),
        settings=service.settings.describe(),
        limits=ServerLimits(
            **{name: getattr(told.limits, name) for name in ServerLimits.model_fields}
        ),
        queue=Queue(
            calls=service.worker.waiting_calls,
            running_verb=running_verb(service) or None,
            inflight_bytes=service.inflight.held_bytes,
        ),
    )

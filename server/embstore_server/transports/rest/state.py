"""GET /api/v1/server, /api/v1/stats and /api/v1/frequency: the server's state and stats."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from embstore.cache.policies import POLICIES
from embstore.commands import GetServerInfo
from embstore.config import INITIALIZERS, OPTIMIZERS
from embstore.device.facts import DeviceFacts
from embstore.hotness.stats import FrequencyStats
from embstore.stats import declared, document
from embstore_server.transports.rest.calls import Calling, CallRoute
from embstore_server.transports.rest.models import reply, reply_model
from embstore_server.transports.rest.stats import ServerStats, ServiceStats, process_stats

router = APIRouter(route_class=CallRoute)


def _parts(of: type) -> dict[str, tuple[Any, str]]:
    return {stat.name: (stat.type, stat.help) for stat in declared(of)}


_SERVER = reply_model(
    "Server",
    "What serves.",
    version=(str, "Version of embstore"),
    service=(ServiceStats, "What the process is doing"),
    device=(str, "Where rows are cached and computed: cpu or cuda:N"),
    device_info=(DeviceFacts, "The device"),
    policy=(str, "Which rows leave the cache first"),
    policies=(list[str], "Policies that there are"),
    cache_bytes=(int, "The present budget of the cache"),
    read_only=(bool, "Nothing can be written"),
    optimizers=(list[str], "Kinds that a table may have"),
    initializers=(list[str], "Kinds that a table may have"),
    settings=(dict[str, Any], "Those that the server was started with"),
    limits=(dict[str, int | float], "Named bounds; a call beyond one is refused by its name"),
)
_STATS = reply_model("Stats", "The stats of store and server.", **_parts(ServerStats))
_FREQUENCY = reply_model("Frequency", "Access frequencies.", **_parts(FrequencyStats))


@router.get("/server", name="GetServerInfo", response_model=_SERVER, tags=["server"])
async def get_server(call: Calling) -> dict[str, Any]:
    """Return the server's description. Needs no engine: it works while a long call runs."""
    service = call.service
    call.check_may_read_stats()  # the description reveals as much
    command = call.permitted(GetServerInfo())
    info = (await service.execute(call.caller, command)).value  # works even if the store has failed
    return reply(
        info.context,
        version=info.version,
        service=document(ServiceStats, service),
        device=info.device,
        device_info=info.device_info,
        policy=info.policy,
        policies=list(POLICIES),
        cache_bytes=info.cache_bytes,
        read_only=info.read_only,
        optimizers=list(OPTIMIZERS),
        initializers=list(INITIALIZERS),
        settings=service.settings.describe(),
        limits=asdict(info.limits) | asdict(info.server),
    )


@router.get("/stats", name="GetStats", response_model=_STATS, tags=["stats"])
async def get_stats(call: Calling) -> dict[str, Any]:
    """Return all stats.

    The engine counts the rows of each table anew, so call this every few seconds, and not more
    often.
    """
    answered = await call.stats()
    process = process_stats(call.service, answered.value)
    verbs = call.service.metrics.stats()
    return reply(answered.context, **answered.value, **process, verbs=verbs)


@router.get("/frequency", name="GetFrequency", response_model=_FREQUENCY, tags=["stats"])
async def get_frequency(call: Calling) -> dict[str, Any]:
    """Return the state of counting, recording, warming and pinning."""
    answered = await call.stats()
    return reply(answered.context, **answered.value["frequency"])

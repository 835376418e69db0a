# ruff: noqa: RUF009 - the calls declare fields
"""GET /api/v1/checkpoints, and GET and POST /api/v1/cache/warm."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from embstore.commands import WARM_SHARE, ListCheckpoints, WarmCache
from embstore.hotness.stats import WarmingStats
from embstore.stats import document, flag, gauge, text
from embstore_server.transports.rest.calls import Call, Calling, CallRoute
from embstore_server.transports.rest.models import Request, examples, reply, reply_model

durability = APIRouter(route_class=CallRoute, tags=["durability"])
cache = APIRouter(route_class=CallRoute, tags=["cache"])


# Durability


@dataclass
class CheckpointDescription:
    """A state of the store that is kept under a label."""

    label: str = text("Name of the checkpoint.")
    metadata: dict[str, Any] = text("What the caller gave with it.")
    command: int = gauge("Its last command.")
    made_at: float | None = gauge(
        "When it was made, in seconds since the Unix epoch; none where that is not known."
    )
    protected: bool = flag("Newer ones do not push it out, and it is not dropped.")
    tables: int | None = gauge("How many it has; none where that is not for the caller to know.")


_CHECKPOINTS = reply_model(
    "Checkpoints",
    "All kept checkpoints.",
    checkpoints=(list[CheckpointDescription], "Oldest first"),
)


@durability.get("/checkpoints", name="ListCheckpoints", response_model=_CHECKPOINTS)
async def list_checkpoints(call: Calling) -> dict[str, Any]:
    """Return the checkpoints that can be restored."""
    answered = await call.execute(ListCheckpoints())
    checkpoints = [document(CheckpointDescription, kept) for kept in answered.value]
    return reply(answered.context, checkpoints=checkpoints)


# The cache


class WarmRequest(Request):
    """The part of the cache to warm."""

    model_config = examples({"share": WARM_SHARE})

    share: float = Field(WARM_SHARE, gt=0, le=1, description="Of the slots")


_WARMING = reply_model(
    "Warming", "How far the last warm-up is.", warming=(WarmingStats, "The last one")
)


@cache.post("/cache/warm", name="WarmCache", status_code=202, response_model=_WARMING)
async def warm_cache(call: Calling, request: WarmRequest | None = None) -> dict[str, Any]:
    """Begin to read the most frequent rows into the cache; calls continue meanwhile.

    The call joins a running warm-up of the same share. While a warm-up of another share runs, the
    call is refused (503).
    """
    call.check_ready()
    command = call.permitted(WarmCache(request.share if request else WARM_SHARE))
    call.service.warming.begun(command.share)
    return _warming(call)


@cache.get("/cache/warm", name="GetWarming", response_model=_WARMING)
async def get_warming(call: Calling) -> dict[str, Any]:
    """Return the progress of the warm-up. Needs no engine."""
    call.check_ready()
    call.check_may_read_stats()
    return _warming(call)


def _warming(call: Call) -> dict[str, Any]:
    """Return the progress of the warm-up as the server has noted it, because the engine may be
    busy."""
    warmed, error = call.service.warming.state()
    warming = WarmingStats(warmed.rows, warmed.of, not warmed.finished, error)
    return reply(call.service.context(), warming=vars(warming))

# ruff: noqa: RUF009 - the calls declare fields
"""GET and POST /api/v1/checkpoints and /api/v1/cache/warm; POST /api/v1/restore, /api/v1/flush and
/api/v1/cache.
"""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from embstore import results
from embstore.commands import (
    WARM_SHARE,
    Checkpoint,
    Flush,
    ListCheckpoints,
    ResizeCache,
    Restore,
    WarmCache,
)
from embstore.hotness.stats import WarmingStats
from embstore.stats import document, flag, gauge, part, text
from embstore_server.transports.rest.calls import Call, Calling, CallRoute, one_table
from embstore_server.transports.rest.models import Request, examples, reply, reply_model
from embstore_server.transports.rest.tables import TableDescription

durability = APIRouter(route_class=CallRoute, tags=["durability"])
cache = APIRouter(route_class=CallRoute, tags=["cache"])


# Durability


@dataclass
class CheckpointDescription:
    """A state kept under a label."""

    label: str = text("Name of the checkpoint.")
    metadata: dict[str, Any] = text("What the caller gave with it.")
    command: int = gauge("Its last command.", lambda kept: kept.state.command)
    made_at: float | None = gauge(
        "When it was made, in seconds since the Unix epoch; none where that is not known."
    )
    protected: bool = flag("Newer ones do not push it out, and it is not dropped.")
    tables: list[TableDescription] = part(
        "As they were.",
        lambda kept: [
            results.TableDescription(t.config(), t.table_id, t.t) for t in kept.state.tables
        ],
    )


class CheckpointRequest(Request):
    """A checkpoint to make."""

    model_config = examples({"label": "step-1000", "metadata": {"step": 1000}})

    label: str = Field(description="1 to 255 printable characters; no kept checkpoint has it")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Kept with it; at most limits.metadata_bytes_max of JSON"
    )


class RestoreRequest(Request):
    """Where to go back to."""

    model_config = examples({"label": "step-1000"}, {"label": "step-1000", "force": True})

    label: str = Field(description="Of a kept checkpoint")
    force: bool = Field(False, description="End open sessions first; else they forbid it")


class FlushRequest(Request):
    """What to flush."""

    model_config = examples({"table": "ads"}, {})

    table: str | None = Field(None, description="A table's name; null: all tables")


_CHECKPOINTS = reply_model(
    "Checkpoints",
    "All kept checkpoints.",
    checkpoints=(list[CheckpointDescription], "Oldest first"),
)
_CHECKPOINT = reply_model(
    "CheckpointReply", "The new checkpoint.", checkpoint=(CheckpointDescription, "As it is kept")
)
_RESTORED = reply_model(
    "RestoreReply", "The store is at the checkpoint.", label=(str, "Of the checkpoint")
)
_FLUSH = reply_model(
    "FlushReply",
    "What was flushed.",
    rows=(int, "Rows written to the log; a checkpoint makes them durable"),
)


@durability.get("/checkpoints", name="ListCheckpoints", response_model=_CHECKPOINTS)
async def list_checkpoints(call: Calling) -> dict[str, Any]:
    """Return the checkpoints that can be restored."""
    answered = await call.execute(ListCheckpoints())
    checkpoints = [document(CheckpointDescription, kept) for kept in answered.value]
    return reply(answered.context, checkpoints=checkpoints)


@durability.post(
    "/checkpoints",
    name="Checkpoint",
    status_code=201,
    response_model=_CHECKPOINT,
)
async def checkpoint(call: Calling, request: CheckpointRequest) -> dict[str, Any]:
    """Make everything durable, and keep it under a label.

    A checkpoint that was started is made even if its answer comes too late: the list shows it.
    """
    answered = await call.execute(Checkpoint(request.label, request.metadata))
    return reply(answered.context, checkpoint=document(CheckpointDescription, answered.value))


@durability.post("/restore", name="Restore", response_model=_RESTORED)
async def restore(call: Calling, request: RestoreRequest) -> dict[str, Any]:
    """Go back to a kept checkpoint, for all clients. What is newer is gone."""
    answered = await call.execute(Restore(request.label, request.force))
    return reply(answered.context, label=request.label)


@durability.post("/flush", name="Flush", response_model=_FLUSH)
async def flush(call: Calling, request: FlushRequest | None = None) -> dict[str, Any]:
    """Write dirty rows to the log, of one table or of all; they stay in the cache."""
    table = request.table if request else None
    answered = await call.execute(Flush() if table is None else Flush(one_table(table)))
    return reply(answered.context, rows=answered.value)


# The cache

_BUDGET = "Memory for resident rows, their index and staging"


class CacheRequest(Request):
    """The new budget of the cache."""

    model_config = examples({"cache_bytes": 4 << 30})

    cache_bytes: int = Field(description=_BUDGET)


class WarmRequest(Request):
    """How much of the cache to warm."""

    model_config = examples({"share": WARM_SHARE})

    share: float = Field(WARM_SHARE, gt=0, le=1, description="Of the slots")


_CACHE = reply_model("CacheReply", "The budget of the cache.", cache_bytes=(int, _BUDGET))
_WARMING = reply_model(
    "Warming", "How far the last warm-up is.", warming=(WarmingStats, "The last one")
)


@cache.post("/cache", name="ResizeCache", response_model=_CACHE)
async def resize_cache(call: Calling, request: CacheRequest) -> dict[str, Any]:
    """Change the cache's budget until the server is restarted. No row and no bit changes."""
    answered = await call.execute(ResizeCache(request.cache_bytes))
    return reply(answered.context, cache_bytes=request.cache_bytes)


@cache.post("/cache/warm", name="WarmCache", status_code=202, response_model=_WARMING)
async def warm_cache(call: Calling, request: WarmRequest | None = None) -> dict[str, Any]:
    """Begin to bring the most frequent rows into the cache; calls go on meanwhile.

    One that runs for the same share is joined; while one runs for another, this is refused (503).
    """
    call.check_ready()
    command = call.permitted(WarmCache(request.share if request else WARM_SHARE))
    call.service.warming.begun(command.share)
    return _warming(call)


@cache.get("/cache/warm", name="GetWarming", response_model=_WARMING)
async def get_warming(call: Calling) -> dict[str, Any]:
    """Return how far the warm-up is. Needs no engine."""
    call.check_ready()
    call.check_may_read_stats()
    return _warming(call)


def _warming(call: Call) -> dict[str, Any]:
    """Return the warm-up as the server knows it: the engine may be busy."""
    warmed, error = call.service.warming.state()
    warming = WarmingStats(warmed.rows, warmed.of, not warmed.finished, error)
    return reply(call.service.context(), warming=vars(warming))

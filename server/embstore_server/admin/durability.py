"""GET and POST /api/v1/checkpoints, POST /api/v1/flush."""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from embstore.results import Checkpoint
from embstore.store import Store
from embstore_proto.configs import Described
from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.models import CONTEXT_EXAMPLE, Context, Reply, Request, examples
from embstore_server.admin.tables import TABLE_EXAMPLE, TableDescription

router = APIRouter(route_class=CallRoute, tags=["durability"])

_METADATA_EXAMPLE: dict[str, Any] = {"step": 1000, "dense": "dense-1000.pt"}
_CHECKPOINT_EXAMPLE: dict[str, Any] = {
    "label": "step-1000",
    "metadata": _METADATA_EXAMPLE,
    "command": 120000,
    "tables": [TABLE_EXAMPLE],
}


class CheckpointDescription(Reply):
    """A state kept under a label."""

    label: str
    metadata: dict[str, Any] = Field(description="What the caller gave with it")
    command: int = Field(description="The last command that it holds")
    tables: list[TableDescription] = Field(description="As they were")

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "CheckpointDescription":
        """Return a kept checkpoint."""
        return cls(
            label=checkpoint.label,
            metadata=checkpoint.metadata,
            command=checkpoint.state.command,
            tables=[
                TableDescription.of(Described(entry.config(), entry.table_id, entry.t))
                for entry in checkpoint.state.tables
            ],
        )


class Checkpoints(Reply):
    """All kept checkpoints."""

    context: Context
    checkpoints: list[CheckpointDescription] = Field(description="Oldest first")


class CheckpointReply(Reply):
    """The checkpoint that was made."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "checkpoint": _CHECKPOINT_EXAMPLE})

    context: Context
    checkpoint: CheckpointDescription


class CheckpointRequest(Request):
    """A checkpoint to make."""

    model_config = examples({"label": "step-1000", "metadata": _METADATA_EXAMPLE})

    label: str = Field(description="1 to 255 printable characters, not kept at present")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="To find beside it; limits.metadata_bytes_max of JSON"
    )


class FlushRequest(Request):
    """What to flush."""

    model_config = examples({"table": "ads"}, {})

    table: str | None = Field(None, description="A table's name; null: all tables")


class FlushReply(Reply):
    """What was flushed."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "rows": 81920})

    context: Context
    rows: int = Field(description="Written to the log; durable is only a checkpoint")


@router.get("/checkpoints", name="ListCheckpoints")
async def list_checkpoints(call: Calling) -> Checkpoints:
    """Return the checkpoints that can be restored."""
    answered = await call.run(lambda store: store.checkpoints())
    return Checkpoints(
        context=Context.of(answered.context),
        checkpoints=[CheckpointDescription.of(kept) for kept in answered.value],
    )


@router.post("/checkpoints", name="Checkpoint", status_code=201)
async def checkpoint(call: Calling, request: CheckpointRequest) -> CheckpointReply:
    """Make everything durable, and keep it under a label.

    A checkpoint whose answer did not come in time is made all the same, if it was started: the list
    says whether it is kept.
    """
    answered = await call.run(lambda store: store.checkpoint(request.label, request.metadata))
    return CheckpointReply(
        context=Context.of(answered.context), checkpoint=CheckpointDescription.of(answered.value)
    )


@router.post("/flush", name="Flush")
async def flush(call: Calling, request: FlushRequest | None = None) -> FlushReply:
    """Write dirty rows to the log, of one table or of all; they stay in the cache."""
    table = request.table if request else None

    def work(store: Store) -> int:
        return store.flush() if table is None else store.table(table).flush()

    answered = await call.run(work)
    return FlushReply(context=Context.of(answered.context), rows=answered.value)

"""POST /api/v1/cache: another budget for the cache, while it is in use."""

from fastapi import APIRouter
from pydantic import Field

from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.models import CONTEXT_EXAMPLE, Context, Reply, Request, examples

router = APIRouter(route_class=CallRoute, tags=["cache"])


class CacheRequest(Request):
    """The budget that the cache shall have."""

    model_config = examples({"cache_bytes": 4 << 30})

    cache_bytes: int = Field(description="Memory for resident rows, their index and staging")


class CacheReply(Reply):
    """The budget that the cache has."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "cache_bytes": 4 << 30})

    context: Context
    cache_bytes: int = Field(description="Memory for resident rows, their index and staging")


@router.post("/cache", name="ResizeCache")
async def resize_cache(call: Calling, request: CacheRequest) -> CacheReply:
    """Change the cache's budget until the server is restarted. No row and no bit changes."""
    answered = await call.run(lambda store: store.resize_cache(request.cache_bytes))
    return CacheReply(context=Context.of(answered.context), cache_bytes=request.cache_bytes)

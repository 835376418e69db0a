"""GET /api/v1/sessions, DELETE /api/v1/sessions/{name}."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from embstore.commands import EndSession
from embstore.lookahead.stats import PlanningStats, SessionStats
from embstore_server.transports.rest.calls import Calling, CallRoute
from embstore_server.transports.rest.models import reply, reply_model

router = APIRouter(route_class=CallRoute, tags=["sessions"])

_SESSIONS = reply_model(
    "Sessions",
    "All live sessions.",
    sessions=(list[SessionStats], "By name"),
    planning=(PlanningStats, "Planning for all sessions"),
)
_ENDED = reply_model("EndedSession", "A session that was ended.", name=(str, "Its name"))


@router.get("/sessions", name="ListSessions", response_model=_SESSIONS)
async def list_sessions(call: Calling) -> dict[str, Any]:
    """Return how far every live session is. Needs no engine. Members are secret."""
    call.check_ready()
    call.check_may_read_stats()
    stats = call.service.engine.sessions.stats()
    sessions = sorted(stats["open"], key=lambda session: session["name"])
    return reply(call.service.context(), sessions=sessions, planning=stats["planning"])


@router.delete("/sessions/{name:path}", name="EndSession", response_model=_ENDED)
async def end_session(
    call: Calling, name: Annotated[str, Path(description="Of a live session", examples=["ctr"])]
) -> dict[str, Any]:
    """End a session for all its ranks, who are told so; its place stays."""
    answered = await call.execute(EndSession(name))
    return reply(answered.context, name=name)

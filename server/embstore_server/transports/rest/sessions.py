"""GET /api/v1/sessions: the progress of look-ahead sessions."""

from typing import Any

from fastapi import APIRouter

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


@router.get("/sessions", name="ListSessions", response_model=_SESSIONS)
async def list_sessions(call: Calling) -> dict[str, Any]:
    """Return the progress of every live session. Needs no engine. The ids of members are secret,
    and left out."""
    call.check_ready()
    call.check_may_read_stats()
    stats = call.service.engine.sessions.stats()
    sessions = sorted(stats["open"], key=lambda session: session["name"])
    return reply(call.service.context(), sessions=sessions, planning=stats["planning"])

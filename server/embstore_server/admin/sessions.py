"""GET /api/v1/sessions: every live look-ahead session, how far it is, and what it waited for.

Sessions are read only here. Members are not told: who knows one may train in its place.
"""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.models import CONTEXT_EXAMPLE, Context, Reply, examples

router = APIRouter(route_class=CallRoute, tags=["sessions"])

SESSION_EXAMPLE: dict[str, Any] = {
    "name": "ctr",
    "tables": ["ads", "users"],
    "planner": "per_step",
    "shared": False,
    "world_size": 2,
    "ranks_joined": 2,
    "lookahead_steps_max": 16,
    "last_step": 1200,
    "planned_step": 1210,
    "announced_step": 1216,
    "announced_bytes": 4_194_304,
    "ready_steps": 8,
    "steps_finished": 1200,
    "steps_in_parts": 0,
    "steps_planned_again": 0,
    "lookup_keys": 39_321_600,
    "lookup_hits": 39_321_600,
    "hit_rate": 1.0,
    "prefetch_coverage": 1.0,
    "early_rows": 26_738_688,
    "late_rows": 12_582_912,
    "early_bytes": 6_845_104_128,
    "late_bytes": 3_221_225_472,
    "early_share": 0.68,
    "stall_s": 0.31,
    "stalls": 4,
    "held_back": False,
    "held_back_s": 0.0,
    "oldest_lease_s": 1.5,
}

PLANNING_EXAMPLE: dict[str, Any] = {
    "stage_seconds": {"evict": 4.1, "plan": 2.5, "collect": 41.0, "exchange": 1.2, "insert": 3.1},
    "planned_keys": 39_649_280,
    "collected_rows": 9_830_400,
    "collecting": 2,
    "inserting": 3,
    "pinned_rows": 262_144,
}


class SessionFigures(Reply):
    """One live session. Counts are since it was opened."""

    model_config = examples(SESSION_EXAMPLE)

    name: str
    tables: list[str] = Field(description="Unless it is shared, only the session writes them")
    planner: str = Field(description='"per_step", "group:N" or "window"')
    shared: bool = Field(description="Others may write its tables too")
    world_size: int = Field(description="Ranks that a step waits for")
    ranks_joined: int = Field(description="Of these, how many have joined and not closed")
    lookahead_steps_max: int = Field(description="Steps announced beyond the last finished")
    last_step: int = Field(description="Last finished step of this name; 0 before the first")
    planned_step: int = Field(description="Steps up to this one are planned")
    announced_step: int = Field(description="Steps up to this one are announced by every rank")
    announced_bytes: int = Field(description="Of the keys of announced steps")
    ready_steps: int = Field(description="Steps whose rows are in the cache, and stay there")
    steps_finished: int = Field(description="Updated, released or skipped")
    steps_in_parts: int = Field(description="Of these, those whose rows did not fit the cache")
    steps_planned_again: int = Field(description="Steps that lost their place to a nearer one")
    lookup_keys: int = Field(description="Keys that lookups had")
    lookup_hits: int = Field(description="Of these, those whose rows were in the cache by then")
    hit_rate: float = Field(description="lookup_hits / lookup_keys, 0 to 1; 1 before the first")
    prefetch_coverage: float = Field(
        description="Share of lookup_keys that were planned ahead, and pinned when they were read"
    )
    early_rows: int = Field(description="Rows sent before their step was ready")
    late_rows: int = Field(description="Rows sent when it was")
    early_bytes: int = Field(description="Of the early rows")
    late_bytes: int = Field(description="Of the late rows")
    early_share: float = Field(description="early_rows / all rows sent, 0 to 1; 0 before the first")
    stall_s: float = Field(description="Seconds that lookups waited while it was their step's turn")
    stalls: int = Field(description="How often they did")
    held_back: bool = Field(description="Planning waits now, for room in the cache")
    held_back_s: float = Field(description="Seconds that planning has waited for room")
    oldest_lease_s: float = Field(description="Seconds since the most silent rank was heard of")


class Planning(Reply):
    """What planning for all sessions costs. Counts are since the store was opened."""

    model_config = examples(PLANNING_EXAMPLE)

    stage_seconds: dict[str, float] = Field(
        description="By stage: evict, plan, collect, exchange, insert"
    )
    planned_keys: int = Field(description="Keys of planned steps")
    collected_rows: int = Field(description="Rows that were brought in ahead")
    collecting: int = Field(description="Collections of rows under way")
    inserting: int = Field(description="Collections whose rows are not in the cache yet")
    pinned_rows: int = Field(description="Rows that stay in the cache for announced steps")


class Sessions(Reply):
    """All live sessions."""

    model_config = examples(
        {
            "context": CONTEXT_EXAMPLE,
            "planning": PLANNING_EXAMPLE,
            "sessions": [SESSION_EXAMPLE],
        }
    )

    context: Context
    planning: Planning = Field(description="Of all sessions together")
    sessions: list[SessionFigures] = Field(description="By name")


@router.get("/sessions", name="ListSessions")
async def list_sessions(call: Calling) -> Sessions:
    """Return how far every live session is."""
    answered = await call.run(lambda store: (store.sessions.facts(), store.sessions.planning()))
    facts, planning = answered.value
    return Sessions(
        context=Context.of(answered.context),
        planning=Planning(**planning),
        sessions=[SessionFigures(**told) for told in sorted(facts, key=lambda told: told["name"])],
    )

# ruff: noqa: RUF009 - the calls declare fields
"""GET /api/v1/calls: the times of calls, as histograms, and the latest slow calls.

The difference of two answers is the histogram of the calls between the two. From such differences
the page computes the quantiles of the last seconds. The engine is not needed.
"""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from embstore.stats import document, gauge
from embstore_server.telemetry.metrics import BOUNDS
from embstore_server.telemetry.slow_calls import SlowCall
from embstore_server.transports.rest.calls import Calling, CallRoute
from embstore_server.transports.rest.models import reply, reply_model

router = APIRouter(route_class=CallRoute, tags=["stats"])


@dataclass
class VerbHistograms:
    """The calls of one verb by duration: the number in each bucket, and the number above the last
    bound."""

    call: list[int] = gauge("By the time of the whole call.")
    wait: list[int] = gauge("By the time in the queue.")
    engine: list[int] = gauge("By the time on the engine.")


_CALLS = reply_model(
    "Calls",
    "The times of calls since the process began, and the latest slow ones.",
    bounds=(list[float], "Upper bounds of the buckets in seconds, each inside its bucket"),
    verbs=(dict[str, VerbHistograms], "Verbs that were called"),
    slow_call_ms=(float, "Calls that take as long are slow"),
    slow_calls=(list[SlowCall], "The latest first"),
)


@router.get("/calls", name="GetCalls", response_model=_CALLS)
async def get_calls(call: Calling) -> dict[str, Any]:
    """Return the times of calls, and the latest slow calls. Needs no engine."""
    call.check_ready()
    call.check_may_read_stats()
    metrics = call.service.metrics
    slow = [document(SlowCall, one) for one in metrics.slow_calls.latest()]
    return reply(
        call.service.context(),
        bounds=list(BOUNDS),
        verbs=metrics.histograms(),
        slow_call_ms=call.service.settings.slow_call_ms,
        slow_calls=slow,
    )

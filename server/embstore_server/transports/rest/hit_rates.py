"""GET /api/v1/hit-rates: predicted hit rates of caches of other sizes.

A prediction takes seconds of a core, as long as the training of many steps. Therefore at most one
prediction runs at a time, on a thread of its own, for all callers. The answer to a request is the
last prediction. If that is old, the request begins a new prediction, and waits for it only if the
caller asks to. A prediction is **old** after FRESH_S, or, if that is longer, after REST times its
own duration. So predictions take a small part of a core, whatever the number of rows and of open
pages. A prediction that failed (and was logged), or found no counted accesses, is old after
RETRY_S. A prediction of another policy or budget is old at once.
"""

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request as HttpRequest

from embstore.commands import ExportProfile, GetServerInfo, GetStats, Progress
from embstore.engine.engine import Engine
from embstore.errors import EmbstoreError
from embstore.stats import document
from embstore_server.path.service import Service
from embstore_server.sizing.curves import Curve, curves
from embstore_server.telemetry.logs import event
from embstore_server.transports.rest.calls import Calling, CallRoute
from embstore_server.transports.rest.models import reply, reply_model

FRESH_S, RETRY_S = 60.0, 10.0
REST = 20

router = APIRouter(route_class=CallRoute, tags=["frequency"])

_HIT_RATES = reply_model(
    "HitRates",
    "Predicted hit rates by size of the cache.",
    policy=(str, "The policy when it was predicted; empty: nothing was yet"),
    age_s=(float | None, "Time since it was predicted; none: nothing was yet"),
    predicting=(bool, "A prediction is being made"),
    curves=(list[Curve], "Of each layout of rows with counted accesses"),
)


class Predictions:
    """The last prediction, and the running one. Event loop only."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None
        self._of: tuple[str, int] | None = None  # policy and budget of the last prediction
        self._old_at = 0.0  # monotonic seconds
        self.policy, self.curves = "", list[Curve]()
        self.made_at: float | None = None  # monotonic seconds

    @property
    def running(self) -> bool:
        """Whether a prediction is running."""
        return self._task is not None and not self._task.done()

    async def refresh(self, *, wait: bool) -> None:
        """Begin a prediction if the last one is old; with `wait`, wait for the running one.

        Raises the error of the prediction if the call has waited for the prediction.
        """
        info = self._service.engine.execute(GetServerInfo())  # needs no turn
        of = info.policy, info.cache_bytes
        if not self.running and (self._of != of or monotonic() > self._old_at):
            self._of = of
            self._task = asyncio.create_task(self._predict())
            self._task.add_done_callback(_log)
        if wait and self._task is not None:
            await asyncio.shield(self._task)

    async def _predict(self) -> None:
        began, fresh_s = monotonic(), RETRY_S
        try:
            found = await self._service.run_in_thread("GetHitRates", _predicted)
            (self.policy, self.curves), self.made_at = found, monotonic()
            if self.curves:
                fresh_s = FRESH_S
        finally:
            self._old_at = monotonic() + max(fresh_s, REST * (monotonic() - began))


def _log(task: asyncio.Task[None]) -> None:
    """Log the error of a prediction, for which usually no call waits."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, EmbstoreError):
        event(logging.WARNING, "hit rates were not predicted", error=str(error))
    elif error is not None:
        event(logging.ERROR, "internal error", verb="GetHitRates", exc_info=error)


def _predicted(engine: Engine, progress: Progress) -> tuple[str, list[Curve]]:
    stats = engine.execute(GetStats())
    profile = engine.execute(ExportProfile("counted"), progress=progress)
    return stats["policy"], curves(profile, stats)


@router.get("/hit-rates", name="GetHitRates", response_model=_HIT_RATES)
async def get_hit_rates(
    call: Calling,
    request: HttpRequest,
    wait: Annotated[
        bool, Query(description="Wait for a prediction that is being made, or is begun")
    ] = False,
) -> dict[str, Any]:
    """Return the hit rates that caches of several sizes would have had, under each policy.

    The rates are predicted from the counted accesses; without counted accesses there are no curves.
    If the last prediction is old (a minute or more), it is returned, and a new prediction begins.
    """
    call.check_ready()
    call.check_may_read_stats()
    call.permitted(ExportProfile("counted"))
    made: Predictions = request.app.state.predictions
    await made.refresh(wait=wait)
    return reply(
        call.service.context(),
        policy=made.policy,
        age_s=None if made.made_at is None else monotonic() - made.made_at,
        predicting=made.running,
        curves=list(map(partial(document, Curve), made.curves)),
    )

"""Warm-ups of the cache.

One runs at a time, on a thread of its own, and calls can follow its progress. A warm-up belongs to
the server and not to the call that requested it. The warm-up takes as long as the disk needs,
continues when its callers disconnect, and ends with the store. A request names the share of the
cache's slots to warm. If that share is being warmed, the request joins the running warm-up; a
request for another share waits until the running warm-up has ended. The progress is read every
`_LOOK_S`, because a person watches it. Event loop only, except `WarmUp.note`, which the thread
calls.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from embstore.commands import Progress, WarmCache
from embstore.engine.engine import Engine
from embstore.errors import EmbstoreError, OverloadedError, StoreClosedError
from embstore.results import Warmed
from embstore_proto.status import message_of
from embstore_server.telemetry.logs import event

if TYPE_CHECKING:
    from embstore_server.path.served import Served

_LOOK_S = 0.25
_LOGGED_EVERY_S = 10.0


@dataclass
class WarmUp:
    """A warm-up that runs, or has ended."""

    share: float
    done: "asyncio.Future[int]" = field(repr=False)
    done_of: tuple[int, int] = (0, 0)
    """Rows read so far, and all rows to read."""

    @property
    def left_s(self) -> float:
        """Seconds after which the warm-up must be polled again."""
        return _LOOK_S

    def note(self, rows: int, of: int) -> None:
        """Note the warm-up's progress. Any thread."""
        self.done_of = (rows, of)

    def ended(self) -> bool | None:
        """Return True once the warm-up has ended, None before."""
        return self.done.done() or None

    def now(self) -> Warmed:
        """Return the warm-up's progress, or raise the error that ended the warm-up."""
        rows, of = self.done_of
        if self.done.done():
            rows = self.done.result()
            return Warmed(rows, max(rows, of), finished=True)
        return Warmed(rows, of, finished=False)


class Warming:
    """The warm-ups of a service."""

    def __init__(self, served: "Served") -> None:
        self._service = served
        self._last: WarmUp | None = None
        self._at_start: asyncio.Task[None] | None = None

    def state(self) -> tuple[Warmed, str | None]:
        """Return the progress of the last warm-up (0 rows if there was none), and the error that
        ended it."""
        if self._last is None:
            return Warmed(0, 0, finished=True), None
        try:
            return self._last.now(), None
        except Exception as exc:
            return Warmed(*self._last.done_of, finished=True), message_of(exc)

    def begun(self, share: float) -> WarmUp:
        """Return the running warm-up of this share, or begin one.

        Raises OverloadedError if a warm-up of another share runs.
        """
        last = self._last
        if last is None or last.done.done():
            return self._begin(share)
        if last.share != share:
            raise OverloadedError(
                f"the cache is already being warmed to a share of {last.share}; wait until that "
                "ends"
            )
        return last

    async def joined(self, share: float) -> WarmUp:
        """Return the warm-up of this share. If a warm-up of another share runs, wait for its end
        first."""
        while True:
            last = self._last
            if last is None or last.done.done() or last.share == share:
                return self.begun(share)
            await self._service.until(last, last.ended)

    async def followed(self, share: float) -> AsyncIterator[Warmed]:
        """Begin or join a warm-up; yield its progress whenever that has changed.

        Raises the error that ended the warm-up.
        """
        warm_up = await self.joined(share)
        last: Warmed | None = None

        def news() -> Warmed | None:
            now = warm_up.now()
            return now if now != last else None

        while last is None or not last.finished:
            last = await self._service.until(warm_up, news)
            yield last

    def _begin(self, share: float) -> WarmUp:
        def work(engine: Engine, wanted: Progress) -> int:
            def progress(rows: int, of: int) -> None:
                warm_up.note(rows, of)
                wanted(rows, of)

            return engine.execute(WarmCache(share), progress=progress).rows

        def ended(done: "asyncio.Future[int]") -> None:
            if not done.cancelled():
                done.exception()  # retrieved, even if no call follows the warm-up
            self._service.wake()

        done = asyncio.ensure_future(self._service.run_in_thread("WarmCache", work))
        done.add_done_callback(ended)
        warm_up = self._last = WarmUp(share, done)
        return warm_up

    def begin_at_start(self, share: float) -> None:
        """Begin to warm the cache in the background, to the share in the settings, and log the
        progress."""
        self._at_start = asyncio.create_task(self._logged(share))

    async def _logged(self, share: float) -> None:
        begin = monotonic()
        event(logging.INFO, "warming the cache", share=share)
        try:
            warm_up = await self.joined(share)
            while not (now := warm_up.now()).finished:
                ended, _ = await asyncio.wait((warm_up.done,), timeout=_LOGGED_EVERY_S)
                if not ended:
                    event(logging.INFO, "warming the cache", rows=now.rows, of=now.of)
        except StoreClosedError as exc:
            event(logging.INFO, "the cache was not warmed to the end", reason=str(exc))
        except EmbstoreError as exc:
            event(logging.ERROR, "the cache was not warmed", reason=str(exc))
        except Exception as exc:
            event(logging.ERROR, "internal error", verb="WarmCache", exc_info=exc)
        else:
            seconds = round(monotonic() - begin, 2)
            event(logging.INFO, "the cache is warm", rows=now.rows, seconds=seconds)

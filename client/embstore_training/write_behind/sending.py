"""Finished steps on their way to the store: sent in order, at most `depth` not acknowledged.

Several calls are out at once, as one at a time would take a journey of the network for each step.
The store finishes them in the order of their numbers, whichever comes first. Their gradients are
held there until then, so no more are out together than one call may have, but always one.

The first failure is kept: nothing is sent after it, and whoever sends or waits next is told.

A step is in the queue or it is not: its threads take steps from there themselves. So an interrupt
(Ctrl-C) within `send` leaves none behind for which nobody comes, and which the end of the run would
wait for; at most its threads have not been woken, which `synchronize` does.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from embstore.results import AcknowledgedUpdate
from embstore_training.rank_session import RankSession


class _Step(NamedTuple):
    number: int
    verb: str
    bytes: int
    send: Callable[[str], AcknowledgedUpdate]


class Sending:
    """The steps of one loop that are sent. Its methods are the loop's thread's."""

    def __init__(
        self,
        session: RankSession,
        depth: int,
        bytes_max: int,
        finished: Callable[[int], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Send steps of `session`; `finished` is told, on any thread, which are acknowledged, and
        `failed`, once, why no more will be."""
        self._session, self._depth, self._bytes_max = session, depth, bytes_max
        self._finished, self._failed = finished, failed
        self._changed = threading.Condition()  # Of all below.
        self._waiting: deque[_Step] = deque()
        self._out: dict[int, int] = {}  # Bytes of each step that is out, by number.
        self._failure: BaseException | None = None
        self._is_stopped = False
        for number in range(depth):  # daemons: a call that hangs keeps no process alive
            name = f"embstore-sender-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def has_failed(self) -> bool:
        """Whether something that was sent failed."""
        return self._failure is not None

    @property
    def is_behind(self) -> bool:
        """Whether something that was sent is not acknowledged yet, and may still be."""
        with self._changed:
            return self._failure is None and not self._is_done()

    def make_room(self) -> None:
        """Wait until one more step may be sent; raise what has failed."""
        self._wait_until(lambda: len(self._waiting) + len(self._out) < self._depth)

    def send(
        self, number: int, verb: str, size: int, send: Callable[[str], AcknowledgedUpdate]
    ) -> None:
        """Have the next step "updated", "released" or "skipped" by a call; wait for nothing."""
        with self._changed:
            self._waiting.append(_Step(number, verb, size, send))
            self._changed.notify_all()

    def synchronize(self) -> None:
        """Wait until all that was sent is acknowledged; raise what has failed."""
        self._wait_until(self._is_done)

    def stop(self) -> None:
        """Send nothing more; wait for nobody."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _is_done(self) -> bool:
        return not self._waiting and not self._out

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure is not None or condition())
            if self._failure is not None:
                raise self._failure

    def _run(self) -> None:
        """Send one step after the other. A thread's."""
        while (step := self._next()) is not None:
            try:
                self._session.finish(step.number, step.verb, step.send)
                self._finished(step.number)
            except BaseException as failure:
                with self._changed:
                    is_first, self._failure = self._failure is None, self._failure or failure
                if is_first:
                    self._failed(failure)
            finally:
                with self._changed:
                    del self._out[step.number]
                    self._changed.notify_all()
            del step  # not kept while the next is waited for

    def _next(self) -> _Step | None:
        """Take the first step that waits, once there is room for it; None: no more are sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended() or self._has_room())
            if self._has_ended():
                return None
            step = self._waiting.popleft()
            self._out[step.number] = step.bytes
            return step

    def _has_ended(self) -> bool:
        return self._is_stopped or self._failure is not None

    def _has_room(self) -> bool:
        if not self._waiting:
            return False
        return not self._out or sum(self._out.values()) + self._waiting[0].bytes <= self._bytes_max

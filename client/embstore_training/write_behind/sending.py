"""Finished steps on their way to the store: sent in order, at most `depth` not acknowledged.

Several calls are out at once, as one at a time would take a journey of the network for each step.
The store finishes them in the order of their numbers, whichever comes first. Their gradients are
held there until then, so no more are out together than one call may have, but always one.

The first failure is kept: no step is sent after it, and the next call that sends or waits raises
it.

A step is in the queue or it is not: its threads take steps from there themselves. An interrupt
(Ctrl-C) within `send` leaves no step behind that no thread takes, and for which the end of the run
would wait; at most its threads have not been woken, which `synchronize` does.

**Priority.** A thread that begins a call needs the interpreter for a millisecond or two, and so
does the loop, which begins the next step at once. A sent step therefore waits until the loop
computes (`go_on`), or waits itself; but not for long, as the loop may do something else.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from embstore.results import AcknowledgedUpdate
from embstore_training.rank_session import RankSession

_KEEP_BACK_S = 3e-3
"""The longest time a step waits for the loop to go on: a few times that time for large steps."""


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
        """Send steps of `session`; `finished` is called, on any thread, with each acknowledged
        step, and `failed`, once, with the error that ends sending."""
        self._session, self._depth, self._bytes_max = session, depth, bytes_max
        self._finished, self._failed = finished, failed
        lock = threading.Lock()  # Of all below.
        self._done, self._given = threading.Condition(lock), threading.Condition(lock)
        """For the loop, that a step is acknowledged; for a sender, that there is one for it."""
        self._gone_on = threading.Condition(lock)
        self._is_kept_back = False  # The loop is between two computations.
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
        with self._done:
            return self._failure is None and not self._is_done()

    def make_room(self) -> None:
        """Wait until one more step may be sent; raise the failure, if there was one."""
        self._wait_until(lambda: len(self._waiting) + len(self._out) < self._depth)

    def send(
        self, number: int, verb: str, size: int, send: Callable[[str], AcknowledgedUpdate]
    ) -> None:
        """Send the next step, to be "updated", "released" or "skipped" by a call; return at
        once."""
        with self._given:
            self._is_kept_back = True
            self._waiting.append(_Step(number, verb, size, send))
            self._given.notify()

    def go_on(self) -> None:
        """Release the steps that are held back, as the loop does not need its thread for a
        while."""
        with self._gone_on:
            self._is_kept_back = False
            self._gone_on.notify_all()

    def synchronize(self) -> None:
        """Wait until all sent steps are acknowledged; raise the failure, if there was one."""
        self._wait_until(self._is_done)

    def stop(self) -> None:
        """Send no further step; return at once."""
        with self._given:
            self._is_stopped = True
            self._wake_all()

    def _is_done(self) -> bool:
        return not self._waiting and not self._out

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._done:
            if self._failure is None and not condition():
                self._is_kept_back = False
                self._wake_all()
                self._done.wait_for(lambda: self._failure is not None or condition())
            if self._failure is not None:
                raise self._failure

    def _wake_all(self) -> None:
        for condition in (self._done, self._given, self._gone_on):
            condition.notify_all()

    def _run(self) -> None:
        """Send one step after the other. A thread's."""
        while (step := self._next()) is not None:
            try:
                self._session.finish(step.number, step.verb, step.send)
                self._finished(step.number)
            except BaseException as failure:
                with self._done:
                    is_first, self._failure = self._failure is None, self._failure or failure
                if is_first:
                    self._failed(failure)
            finally:
                with self._done:
                    del self._out[step.number]
                    self._done.notify_all()
                    self._given.notify()  # there may be room for another one
                    if self._has_ended():
                        self._wake_all()
            del step  # not kept while the next is waited for

    def _next(self) -> _Step | None:
        """Take the first step that waits, once the limits allow it; None: no more are sent."""
        with self._given:
            while not self._has_ended():
                if self._has_room() and not self._is_kept_back:
                    step = self._waiting.popleft()
                    self._out[step.number] = step.bytes
                    if self._has_room():
                        self._given.notify()
                    return step
                if self._has_room():
                    self._is_kept_back = self._gone_on.wait(_KEEP_BACK_S) and self._is_kept_back
                else:
                    self._given.wait()
            return None

    def _has_ended(self) -> bool:
        return self._is_stopped or self._failure is not None

    def _has_room(self) -> bool:
        if not self._waiting:
            return False
        return not self._out or sum(self._out.values()) + self._waiting[0].bytes <= self._bytes_max

"""Finished steps on their way to the store. They are sent in order, and at most `depth` steps are
not acknowledged.

Several calls run concurrently, since calls one after the other would take a network round trip per
step. The store finishes the steps in the order of their numbers, whichever step arrives first. The
store keeps the gradients of a step until all earlier steps are finished. Therefore all steps that
are being sent have, together, at most as many bytes as one call may have; a single step can always
be sent.

The first failure is kept. No step is sent after a failure, and the next call that sends or waits
raises the failure.

An interrupt (Ctrl-C) within `send` cannot leave a step that no thread takes, and for which the end
of the run would wait: the sending threads take steps from the queue themselves, and a step is
either in the queue or not. At worst the threads have not been woken; in that case `synchronize`
wakes them.

**Priority.** A thread that begins a call needs the interpreter for a millisecond or two, and the
loop needs it, too, because it begins the next step at once. So a step is kept back until the loop
computes (`go_on`) or itself waits. The delay is bounded, because the loop may do neither for a long
time.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from embstore.results import AcknowledgedUpdate
from embstore_training.rank_session import RankSession

_KEEP_BACK_S = 3e-3
"""Maximum seconds for which a step is kept back until the loop computes. With large steps, the loop
computes after a fraction of this time."""


class _Step(NamedTuple):
    number: int
    verb: str
    bytes: int
    send: Callable[[str], AcknowledgedUpdate]


class Sending:
    """The steps of one loop that are sent. Its methods are called in the loop's thread."""

    def __init__(
        self,
        session: RankSession,
        depth: int,
        bytes_max: int,
        finished: Callable[[int], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Send steps of `session`. `finished` is called, in any thread, with each acknowledged
        step. `failed` is called once, with the error that ends sending."""
        self._session, self._depth, self._bytes_max = session, depth, bytes_max
        self._finished, self._failed = finished, failed
        lock = threading.Lock()  # Guards all fields below.
        self._done, self._given = threading.Condition(lock), threading.Condition(lock)
        """`_done` notifies the loop of an acknowledged step; `_given` notifies a sender of a
        waiting step."""
        self._gone_on = threading.Condition(lock)
        self.last_number = 0
        """The number of the last step that was given to `send`."""
        self._is_kept_back = False  # Whether steps wait until the loop computes.
        self._waiting: deque[_Step] = deque()
        self._out: dict[int, int] = {}  # Bytes of each step that is being sent, by number.
        self._failure: BaseException | None = None
        self._is_stopped = False
        for number in range(depth):  # daemon threads: a call that hangs keeps no process alive
            name = f"embstore-sender-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def has_failed(self) -> bool:
        """Whether sending a step has failed."""
        return self._failure is not None

    @property
    def is_behind(self) -> bool:
        """Whether a step was sent, is not acknowledged yet, and can still be acknowledged."""
        with self._done:
            return self._failure is None and not self._is_done()

    def make_room(self) -> None:
        """Wait until one more step can be sent; if a step has failed, raise the failure."""
        self._wait_until(lambda: len(self._waiting) + len(self._out) < self._depth)

    def send(
        self, number: int, verb: str, size: int, send: Callable[[str], AcknowledgedUpdate]
    ) -> None:
        """Queue the next step, to be "updated", "released" or "skipped" by a call. Return at
        once."""
        with self._given:
            self._is_kept_back, self.last_number = True, number
            self._waiting.append(_Step(number, verb, size, send))
            self._given.notify()

    def go_on(self) -> None:
        """Let waiting steps be sent, because the loop does not need the interpreter for a while."""
        with self._gone_on:
            self._is_kept_back = False
            self._gone_on.notify_all()

    def synchronize(self) -> None:
        """Wait until all sent steps are acknowledged; if a step has failed, raise the failure."""
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
        """Send one step after the other. Runs in each sending thread."""
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
                    self._given.notify()  # another step may fit now
                    if self._has_ended():
                        self._wake_all()
            del step  # free the step before waiting for the next one

    def _next(self) -> _Step | None:
        """Remove the first waiting step from the queue as soon as it may be sent, and return it;
        None: no more steps are sent."""
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

"""A bounded number of places for calls, and the queue for these places: calls get them in the order
of arrival.

The difficult case is a wait that is cancelled. Its future is cancelled at once, but the waiting
coroutine resumes in the loop's next round. A place that is released in between must not be given to
the cancelled future. A place that the future got just before is passed on to the next call. Event
loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from embstore.errors import EmbstoreError


class Turns:
    """A number of places, and the queue for them. `has_room` gets the number of occupied places,
    and returns whether a further place is free."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self.inside = 0
        """The number of occupied places."""
        self._has_room = has_room
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._queue)

    @property
    def is_free(self) -> bool:
        """Whether the next call need not wait."""
        return not self._queue and self._has_room(self.inside)

    async def enter(self) -> None:
        """Wait for a place, which `leave` releases. If the wait is cancelled, no place is taken."""
        if self.is_free:
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `leave` has removed it
                    self._queue.remove(turn)
            elif turn.exception() is None:
                self.leave()
            raise

    def leave(self) -> None:
        """Release a place, and let the next calls enter."""
        self.inside -= 1
        while self._queue and self._has_room(self.inside):
            turn = self._queue.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)

    def cut_off(self, why: EmbstoreError) -> None:
        """End all waits with this error."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_exception(why)

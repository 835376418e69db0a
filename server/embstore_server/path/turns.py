"""Admission in order: a call that finds no room waits for its turn.

The awkward part is a wait that is cancelled. The future is cancelled at once, but its waiter
resumes in the loop's next round: a turn that is given in between has to skip it, and one that had
just been given is passed on. Event loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from embstore.errors import EmbstoreError


class Turns:
    """Some places, and the queue for them; `has_room(inside)` says whether there is another."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self.inside = 0
        """Places that are taken."""
        self._has_room = has_room
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of waits."""
        return len(self._queue)

    @property
    def is_free(self) -> bool:
        """Whether the next one need not wait."""
        return not self._queue and self._has_room(self.inside)

    async def enter(self) -> None:
        """Wait for a place, which `leave` gives back. Cancelled: none is taken."""
        if self.is_free:
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # passed over
                    self._queue.remove(turn)
            elif turn.exception() is None:
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place to the next ones."""
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

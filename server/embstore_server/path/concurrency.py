"""A concurrency limit per token: one call at a time, while other tokens call as well.

The queue for the engine is fair, but a call costs the event loop as much before it is there, when
it is taken apart, and after. A token with a hundred connections would have the loop, and the
interpreter, to itself. Therefore a bulk call passes here first: its message has come, and waits
until the earlier calls of its client have left the engine. It waits only where another client has
called within the last second; a token that is alone may have any number of calls under way.

Measured (sixteen connections against one, in one run): without it the 99 % of the one's step took
19 times as long as alone, with it 4 times; with two at a time 5.7, with four 6.3. So the limit is
one: while the engine has a call of one token, a call of another is parsed.

Waiting here counts as waiting for the engine. Event loop only.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic
from types import TracebackType

from embstore_server.path.turns import Turns

_CROWDED_S = 1.0
"""Seconds for which another client's last call counts as contention."""


class ConcurrencyLimiter:
    """The calls of each client that are worked on, and those that wait for them."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._queues: dict[str, Turns] = {}  # of those that have calls here
        self._latest = self._latest_other = "", float("-inf")  # clients that called, and when

    @property
    def waiting_calls(self) -> int:
        """Calls that wait."""
        count = 0
        for turns in self._queues.values():
            count += turns.waiting
        return count

    def client_calls(self, client: str) -> int:
        """Return how many of them are of one client."""
        turns = self._queues.get(client)
        return 0 if turns is None else turns.waiting

    async def enter(self, client: str) -> "Place":
        """Wait for a place; it is given back by `leave`, or at the end of its block."""
        if self._latest[0] != client:
            self._latest_other = self._latest
        self._latest = client, self._now()
        turns = self._queues.setdefault(client, Turns(partial(self._has_room, client)))
        try:
            await turns.enter()
        finally:
            self._tidy(client)
        return Place(self, client)

    def _has_room(self, client: str, inside: int) -> bool:
        return not inside or not self._is_crowded(client)

    def _is_crowded(self, client: str) -> bool:
        other = self._latest if self._latest[0] != client else self._latest_other
        return self._now() - other[1] < _CROWDED_S

    def left(self, client: str) -> None:
        """Let the next ones in: a place has become free."""
        self._queues[client].leave()
        self._tidy(client)

    def _tidy(self, client: str) -> None:
        """Forget a client without calls."""
        turns = self._queues.get(client)
        if turns is not None and not turns.inside and not turns.waiting:
            del self._queues[client]


class Place:
    """One call's place inside; a context manager."""

    def __init__(self, limiter: ConcurrencyLimiter, client: str) -> None:
        self._limiter = limiter
        self._client: str | None = client

    def leave(self) -> None:
        """Give the place to the next call, if it has not been given back yet."""
        if self._client is not None:
            client, self._client = self._client, None
            self._limiter.left(client)

    def __enter__(self) -> "Place":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

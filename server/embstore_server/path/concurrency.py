"""A concurrency limit per token: one call at a time, while other tokens call as well.

The queue for the engine is fair. But a call costs the event loop time outside the engine, too:
before the queue, when its message is read, and afterwards. A token with a hundred connections would
keep the loop and the interpreter for itself. Therefore a bulk call waits here first. Its message
has arrived, but is not read until the earlier calls of the same client have left the engine. A call
waits here only if another client has called within the last second; a token that is alone can have
any number of running calls.

In one measured run, a token with sixteen connections competed with a token with one connection.
Without the limit, the 99th percentile of the single connection's step time was 19 times as high as
without the competitor. With the limit the factor was 4; with a limit of two calls it was 5.7, and
with a limit of four calls 6.3. So the limit is one: while the engine executes a call of one token,
a call of another is read.

In stats, the time that a call waits here counts as time in the queue for the engine. Event loop
only.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic
from types import TracebackType

from embstore_server.path.turns import Turns

_CROWDED_S = 1.0
"""Seconds for which another client's last call counts as contention."""


class ConcurrencyLimiter:
    """The running calls of each client, and the calls that wait for them."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._queues: dict[str, Turns] = {}  # only clients that have calls here
        # the last two clients, and the times of their last calls
        self._latest = self._latest_other = "", float("-inf")

    @property
    def waiting_calls(self) -> int:
        """The number of waiting calls."""
        count = 0
        for turns in self._queues.values():
            count += turns.waiting
        return count

    def client_calls(self, client: str) -> int:
        """Return the number of waiting calls of one client."""
        turns = self._queues.get(client)
        return 0 if turns is None else turns.waiting

    async def enter(self, client: str) -> "Place":
        """Wait until the client can run one more call, and return the place of this call.
        `Place.leave` releases the place; so does the end of the place's `with` block."""
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
        """Let the client's next calls enter, because one of its calls has left its place."""
        self._queues[client].leave()
        self._tidy(client)

    def _tidy(self, client: str) -> None:
        """Forget a client that has no calls here."""
        turns = self._queues.get(client)
        if turns is not None and not turns.inside and not turns.waiting:
            del self._queues[client]


class Place:
    """The place of one call among the running calls of its client; a context manager, which
    releases the place at its end."""

    def __init__(self, limiter: ConcurrencyLimiter, client: str) -> None:
        self._limiter = limiter
        self._client: str | None = client

    def leave(self) -> None:
        """Release the place for the next call; releasing it twice is harmless."""
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

"""Who is worked on: one call of a lane at a time, while others call as well."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from embstore_server.turnstile import Turnstile


class Lanes:
    """A turnstile, a clock, and the calls that stand before it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turnstile = Turnstile(lambda: self.now)
        self.calls: list[asyncio.Task[Any]] = []

    async def call(self, lane: str) -> asyncio.Task[Any]:
        """Let one more call try to get in."""
        self.calls.append(asyncio.create_task(self.turnstile.enter(lane)))
        await self.settle()
        return self.calls[-1]

    async def settle(self) -> None:
        """Let whatever can go on."""
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def inside(self) -> list[bool]:
        """Which calls have got in, in the order in which they came."""
        return [call.done() for call in self.calls]


async def _alone(lanes: Lanes) -> None:
    for _ in range(3):
        await lanes.call("a")
    assert lanes.inside == [True] * 3


async def _beside_another(lanes: Lanes) -> None:
    await lanes.call("b")
    first = await lanes.call("a")
    await lanes.call("a")
    await lanes.call("a")
    await lanes.call("b")
    assert lanes.inside == [True, True, False, False, False]
    assert [lanes.turnstile.lane_calls(lane) for lane in "abc"] == [2, 1, 0]
    assert lanes.turnstile.waiting_calls == 3
    first.result().leave()
    first.result().leave()  # once is enough
    await lanes.settle()
    assert lanes.inside == [True, True, True, False, False]


async def _others_have_gone(lanes: Lanes) -> None:
    await lanes.call("b")
    first = await lanes.call("a")
    for _ in range(3):
        await lanes.call("a")
    assert lanes.inside == [True, True, False, False, False]
    lanes.now = 1.0
    first.result().leave()
    await lanes.settle()
    assert lanes.inside == [True] * 5
    assert not lanes.turnstile.waiting_calls


async def _cancelled_while_it_waits(lanes: Lanes) -> None:
    await lanes.call("b")
    first = await lanes.call("a")
    waits, last = await lanes.call("a"), await lanes.call("a")
    waits.cancel()
    await lanes.settle()
    assert lanes.turnstile.lane_calls("a") == 1
    first.result().leave()
    await lanes.settle()
    assert last.done() and waits.cancelled()


async def _cancelled_as_it_gets_in(lanes: Lanes) -> None:
    """The place is free at once for the next one."""
    await lanes.call("b")
    first = await lanes.call("a")
    waits, last = await lanes.call("a"), await lanes.call("a")
    first.result().leave()
    waits.cancel()
    await lanes.settle()
    assert waits.cancelled() and last.done()
    last.result().leave()
    (await lanes.call("a")).result().leave()
    lanes.calls[0].result().leave()
    assert not lanes.turnstile._lanes


async def _cancelled_before_it_heard_of_it(lanes: Lanes) -> None:
    """A turn is not given to a call that was cancelled and has not run since, but to the next."""
    await lanes.call("b")
    first = await lanes.call("a")
    waits, last = await lanes.call("a"), await lanes.call("a")
    waits.cancel()
    first.result().leave()
    await lanes.settle()
    assert waits.cancelled() and last.done()
    last.result().leave()
    assert not lanes.turnstile.waiting_calls
    assert (await lanes.call("a")).done()


@pytest.mark.parametrize(
    "work",
    [
        _alone,
        _beside_another,
        _others_have_gone,
        _cancelled_while_it_waits,
        _cancelled_as_it_gets_in,
        _cancelled_before_it_heard_of_it,
    ],
)
def test_turnstile(work: Callable[[Lanes], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await work(Lanes())

    asyncio.run(run())

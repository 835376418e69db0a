"""Who is worked on: one call of a lane at a time, while others call as well."""

import asyncio
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import embstore
from embstore.errors import OverloadedError
from embstore_server.turnstile import Turnstile
from embstore_server.worker import Task, Worker


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


@pytest.fixture
def lanes(runner: asyncio.Runner) -> Lanes:
    return Lanes()


async def test_who_is_alone_is_never_kept(lanes: Lanes) -> None:
    for _ in range(3):
        await lanes.call("a")
    assert lanes.inside == [True] * 3


async def test_beside_another_lane_one_call_at_a_time_gets_in(lanes: Lanes) -> None:
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


async def test_all_get_in_when_others_have_gone(lanes: Lanes) -> None:
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


@pytest.mark.parametrize("when", ["it waits", "it gets in", "it has not heard that it may"])
async def test_the_turn_of_a_call_that_is_cancelled_is_the_next_ones(
    lanes: Lanes, when: str
) -> None:
    await lanes.call("b")
    first = await lanes.call("a")
    waits, last = await lanes.call("a"), await lanes.call("a")
    if when == "it gets in":
        first.result().leave()
        waits.cancel()
    else:
        waits.cancel()
        if when == "it waits":
            await lanes.settle()
            assert lanes.turnstile.lane_calls("a") == 1
        first.result().leave()
    await lanes.settle()
    assert waits.cancelled() and last.done()
    last.result().leave()
    assert not lanes.turnstile.waiting_calls
    (await lanes.call("a")).result().leave()
    lanes.calls[0].result().leave()
    assert not lanes.turnstile._lanes


async def test_who_has_waited_is_not_refused_in_the_queue_for_those_who_came_later(
    tmp_path: Path, runner: asyncio.Runner
) -> None:
    """They took the place that it had among those who wait."""
    worker = Worker(lambda: embstore.open(tmp_path / "store").executor, 2)
    await worker.start()
    entered, opened = threading.Event(), threading.Event()

    def submit(work: Any, lane: str = "a", **options: Any) -> Task:
        return worker.submit("Verb", work, lane=lane, deadline=monotonic() + 300, **options)

    submit(lambda _: (entered.set(), opened.wait(300)), "gate")
    await asyncio.to_thread(entered.wait, 60)
    later = [submit(len, lane_calls_max=2) for _ in range(2)]
    with pytest.raises(OverloadedError):
        submit(len, lane_calls_max=2)
    earlier = submit(lambda _: 1, lane_calls_max=2, has_waited=True)
    opened.set()
    assert await earlier.outcome == 1
    await asyncio.gather(*(task.outcome for task in later), return_exceptions=True)
    await worker.stop()

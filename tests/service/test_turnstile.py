"""Who is worked on: one call of a lane at a time, while others call as well."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import embstore
from embstore.errors import DeadlineError, OverloadedError, StoreClosedError
from embstore_server.path.turnstile import Turnstile
from embstore_server.path.worker import Task, Worker


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


async def test_who_is_alone_is_never_kept(lanes):
    for _ in range(3):
        await lanes.call("a")
    assert lanes.inside == [True] * 3


async def test_beside_another_lane_one_call_at_a_time_gets_in(lanes):
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


async def test_all_get_in_when_others_have_gone(lanes):
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
async def test_the_turn_of_a_call_that_is_cancelled_is_the_next_ones(lanes, when):
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


# The queue behind it; what else it does `faults/test_limits.py` and `test_replay.py` ask


class Held:
    """An engine thread that is at work until `opened` is set, and two calls of which may wait."""

    def __init__(self, path: Path) -> None:
        self.worker = Worker(lambda: embstore.open(path).executor, 2)
        self.entered, self.opened = threading.Event(), threading.Event()

    async def start(self) -> "Held":
        await self.worker.start()
        self.submit(lambda _: (self.entered.set(), self.opened.wait(300)), "gate")
        await asyncio.to_thread(self.entered.wait, 60)
        return self

    def submit(self, work: Any, lane: str = "a", **options: Any) -> Task:
        options.setdefault("deadline", monotonic() + 300)
        return self.worker.submit("Verb", work, lane=lane, **options)


@pytest.fixture
def held(tmp_path: Path, runner: asyncio.Runner) -> Iterator[Held]:
    made = runner.run(Held(tmp_path / "store").start())
    yield made
    made.opened.set()
    runner.run(made.worker.stop())


async def test_who_has_waited_is_not_refused_for_those_who_came_later(held):
    """They took the place that it had among those who wait."""
    later = [held.submit(len, lane_calls_max=2) for _ in range(2)]
    with pytest.raises(OverloadedError):
        held.submit(len, lane_calls_max=2)
    earlier = held.submit(lambda _: 1, lane_calls_max=2, has_waited=True)
    held.opened.set()
    assert await earlier.outcome == 1
    await asyncio.gather(*(task.outcome for task in later), return_exceptions=True)


async def test_a_deadline_that_passed_in_the_queue_is_told_and_nothing_done(held):
    late = held.submit(pytest.fail, deadline=monotonic() - 1)
    held.opened.set()
    with pytest.raises(DeadlineError, match="in the queue; nothing has changed"):
        await late.outcome


async def test_stopping_finishes_what_waits_and_refuses_what_comes(held):
    waits = held.submit(lambda _: 1)
    stopping = asyncio.create_task(held.worker.stop())
    await asyncio.wait([stopping], timeout=0)
    for brief in (False, True):
        with pytest.raises(StoreClosedError, match="stopping"):
            held.submit(len, brief=brief)
    held.opened.set()
    await stopping
    assert await waits.outcome == 1

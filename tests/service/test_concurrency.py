"""Who is worked on: one call of a client at a time, while others call as well."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import embstore
from embstore.errors import DeadlineError, OverloadedError, StoreClosedError
from embstore_server.path.concurrency import ConcurrencyLimiter
from embstore_server.path.worker import Task, Worker


class Clients:
    """A limiter, a clock, and the calls that stand before it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limiter = ConcurrencyLimiter(lambda: self.now)
        self.calls: list[asyncio.Task[Any]] = []

    async def call(self, client: str) -> asyncio.Task[Any]:
        """Let one more call try to get in."""
        self.calls.append(asyncio.create_task(self.limiter.enter(client)))
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
def clients(runner: asyncio.Runner) -> Clients:
    return Clients()


async def test_who_is_alone_is_never_kept(clients):
    for _ in range(3):
        await clients.call("a")
    assert clients.inside == [True] * 3


async def test_beside_another_client_one_call_at_a_time_gets_in(clients):
    await clients.call("b")
    first = await clients.call("a")
    await clients.call("a")
    await clients.call("a")
    await clients.call("b")
    assert clients.inside == [True, True, False, False, False]
    assert [clients.limiter.client_calls(client) for client in "abc"] == [2, 1, 0]
    assert clients.limiter.waiting_calls == 3
    first.result().leave()
    first.result().leave()  # once is enough
    await clients.settle()
    assert clients.inside == [True, True, True, False, False]


async def test_all_get_in_when_others_have_gone(clients):
    await clients.call("b")
    first = await clients.call("a")
    for _ in range(3):
        await clients.call("a")
    assert clients.inside == [True, True, False, False, False]
    clients.now = 1.0
    first.result().leave()
    await clients.settle()
    assert clients.inside == [True] * 5
    assert not clients.limiter.waiting_calls


@pytest.mark.parametrize("when", ["it waits", "it gets in", "it has not heard that it may"])
async def test_the_turn_of_a_call_that_is_cancelled_is_the_next_ones(clients, when):
    await clients.call("b")
    first = await clients.call("a")
    waits, last = await clients.call("a"), await clients.call("a")
    if when == "it gets in":
        first.result().leave()
        waits.cancel()
    else:
        waits.cancel()
        if when == "it waits":
            await clients.settle()
            assert clients.limiter.client_calls("a") == 1
        first.result().leave()
    await clients.settle()
    assert waits.cancelled() and last.done()
    last.result().leave()
    assert not clients.limiter.waiting_calls
    (await clients.call("a")).result().leave()
    clients.calls[0].result().leave()
    assert not clients.limiter._queues


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

    def submit(self, work: Any, client: str = "a", **options: Any) -> Task:
        options.setdefault("deadline", monotonic() + 300)
        return self.worker.submit("Verb", work, client=client, **options)


@pytest.fixture
def held(tmp_path: Path, runner: asyncio.Runner) -> Iterator[Held]:
    made = runner.run(Held(tmp_path / "store").start())
    yield made
    made.opened.set()
    runner.run(made.worker.stop())


async def test_who_has_waited_is_not_refused_for_those_who_came_later(held):
    """They took the place that it had among those who wait."""
    later = [held.submit(len, client_calls_max=2) for _ in range(2)]
    with pytest.raises(OverloadedError):
        held.submit(len, client_calls_max=2)
    earlier = held.submit(lambda _: 1, client_calls_max=2, has_waited=True)
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

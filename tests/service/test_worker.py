"""The engine thread's queue: fair, bounded, left without a trace; brief work at once."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import embstore
from embstore.commands import GetTable, ListTables
from embstore.errors import DeadlineError, InvalidArgumentError, OverloadedError, StoreClosedError
from embstore_server.worker import Task, Worker


class Gate:
    """Work that holds the engine thread until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, store: Any) -> None:
        self.entered.set()
        assert self.opened.wait(300)


@pytest.fixture
def worker(
    tmp_path: Path, runner: asyncio.Runner, request: pytest.FixtureRequest
) -> Iterator[Worker]:
    """An engine thread; its parameter is how many calls may wait."""

    async def started() -> Worker:
        def opening() -> Any:
            return embstore.open(tmp_path / "store").executor

        worker = Worker(opening, getattr(request, "param", 100))
        await worker.start()
        return worker

    made = runner.run(started())
    yield made
    runner.run(made.stop())


def submit(worker: Worker, work: Any, lane: str = "a", **options: Any) -> Task:
    options.setdefault("deadline", monotonic() + 300)
    return worker.submit("Verb", work, lane=lane, **options)


async def hold(worker: Worker) -> Gate:
    gate = Gate()
    submit(worker, gate, "gate")
    await asyncio.to_thread(gate.entered.wait, 60)
    return gate


async def test_work_gets_the_store_on_a_thread_of_its_own(worker: Worker) -> None:
    found = await submit(
        worker, lambda engine: (engine.execute(ListTables()), threading.current_thread().name)
    ).outcome
    assert found == ((), "engine")


async def test_lanes_take_turns_and_keep_their_order(worker: Worker) -> None:
    gate, done = await hold(worker), []
    names = [f"a{i}" for i in range(5)] + ["b0", "c0", "b1"]
    tasks = [submit(worker, lambda _, n=name: done.append(n), name[0]) for name in names]
    gate.opened.set()
    await asyncio.gather(*(task.outcome for task in tasks))
    assert done == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


@pytest.mark.parametrize("worker", [3], indirect=True)
async def test_a_full_queue_refuses_and_recovers(worker: Worker) -> None:
    gate = await hold(worker)
    tasks = [submit(worker, lambda _: 1) for _ in range(3)]
    with pytest.raises(OverloadedError, match="3 calls wait"):
        submit(worker, lambda _: 1)
    gate.opened.set()
    assert await asyncio.gather(*(task.outcome for task in tasks)) == [1, 1, 1]
    assert await submit(worker, lambda _: 2).outcome == 2


@pytest.mark.parametrize("worker", [2], indirect=True)
async def test_what_has_waited_is_not_refused_for_those_who_came_later(worker: Worker) -> None:
    """They took the place that it had among those who wait."""
    gate = await hold(worker)
    later = [submit(worker, len, "a", lane_calls_max=2) for _ in range(2)]
    with pytest.raises(OverloadedError):
        submit(worker, len, "a", lane_calls_max=2)
    earlier = submit(worker, lambda _: 1, "a", lane_calls_max=2, has_waited=True)
    gate.opened.set()
    assert await earlier.outcome == 1
    await asyncio.gather(*(task.outcome for task in later), return_exceptions=True)


async def test_what_is_withdrawn_while_it_waits_is_never_done(worker: Worker) -> None:
    gate, done = await hold(worker), []
    first, second = (submit(worker, lambda _, i=i: done.append(i)) for i in (1, 2))
    assert worker.withdraw(first)
    assert not worker.withdraw(first)
    assert worker.waiting_calls == 1
    gate.opened.set()
    await second.outcome
    assert first.outcome.cancelled()
    assert not worker.withdraw(second)
    assert done == [2]


async def test_a_deadline_that_passed_in_the_queue_is_told_and_nothing_done(worker: Worker) -> None:
    gate, done = await hold(worker), []
    late = submit(worker, lambda _: done.append(1), deadline=monotonic() - 1)
    gate.opened.set()
    with pytest.raises(DeadlineError, match="in the queue; nothing has changed"):
        await late.outcome
    assert done == []


async def test_an_error_is_the_callers_and_the_thread_goes_on(worker: Worker) -> None:
    with pytest.raises(embstore.TableNotFoundError):
        await submit(worker, lambda engine: engine.execute(GetTable("none"))).outcome
    assert await submit(worker, lambda engine: engine.execute(ListTables())).outcome == ()


async def test_brief_work_is_done_at_once_when_the_engine_is_idle(worker: Worker) -> None:
    task = submit(worker, lambda _: threading.current_thread(), brief=True)
    assert task.outcome.done()
    assert task.outcome.result() is threading.current_thread()


async def test_brief_work_waits_its_turn_when_the_engine_is_not_idle(worker: Worker) -> None:
    gate = await hold(worker)
    task = submit(worker, lambda _: threading.current_thread().name, brief=True)
    assert not task.outcome.done()
    gate.opened.set()
    assert await task.outcome == "engine"


async def test_brief_work_that_fails_gives_the_engine_back(worker: Worker) -> None:
    for brief in (True, False, True):
        task = submit(worker, lambda engine: engine.execute(GetTable("none")), brief=brief)
        with pytest.raises(embstore.TableNotFoundError):
            await task.outcome


async def test_stopping_finishes_what_waits_and_refuses_what_comes(worker: Worker) -> None:
    gate, done = await hold(worker), []
    tasks = [submit(worker, lambda _, i=i: done.append(i)) for i in range(3)]
    stopping = asyncio.create_task(worker.stop())
    await asyncio.wait([stopping], timeout=0)
    for brief in (False, True):
        with pytest.raises(StoreClosedError, match="stopping"):
            submit(worker, lambda _: 1, brief=brief)
    gate.opened.set()
    await stopping
    assert done == [0, 1, 2]
    assert all(task.outcome.done() for task in tasks)


def test_a_store_that_does_not_open_says_why(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "other").touch()

    async def run():
        worker = Worker(lambda: embstore.open(tmp_path / "store"), 10)
        with pytest.raises(InvalidArgumentError, match="expected an empty directory or a store"):
            await worker.start()

    asyncio.run(run())

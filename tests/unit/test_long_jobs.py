"""One client has at most half of the threads of a verb that takes long, whatever it sends."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from embstore.commands import Progress
from embstore.errors import DeadlineError, OverloadedError, StoreClosedError
from embstore_server.path.long_jobs import LongJobs

THREADS, SHARE, MORE = 16, 8, 5
PATIENCE_S = 300.0


class Calls:
    """Works that end when they may, and who has begun, in order."""

    def __init__(self) -> None:
        self.works = LongJobs(lambda: None)
        self.begun: list[Any] = []
        self.go_on = threading.Semaphore(0)
        self._begins = threading.Condition()

    def send(self, client: str, number: int, **options: Any) -> "asyncio.Task[Any]":
        def work(progress: Progress) -> int:
            with self._begins:
                self.begun.append((client, number))
                self._begins.notify_all()
            assert self.go_on.acquire(timeout=PATIENCE_S)
            progress(0, 1)
            return number

        return asyncio.ensure_future(self.works.run("GetDigest", work, client=client, **options))

    async def have_begun(self, count: int) -> None:
        """Wait until so many are at work, and the loop has done all that is due."""

        def wait() -> bool:
            with self._begins:
                return self._begins.wait_for(lambda: len(self.begun) >= count, PATIENCE_S)

        assert await asyncio.to_thread(wait)
        for _ in range(10):
            await asyncio.sleep(0)

    def end(self, count: int) -> None:
        self.go_on.release(count)


@asynccontextmanager
async def called() -> AsyncIterator[Calls]:
    calls = Calls()
    try:
        yield calls
    finally:
        calls.end(1000)
        calls.works.close()


def on_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Have a test run on a loop, with calls; what else it takes is pytest's."""

    async def body(**given: Any) -> None:
        async with called() as calls:
            await test(calls, **given)

    def run(**given: Any) -> None:
        asyncio.run(body(**given))

    taken = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    return run


@on_loop
async def test_a_client_has_half_of_the_threads_and_others_find_the_rest(calls):
    greedy = [calls.send("greedy", n) for n in range(SHARE + MORE)]
    await calls.have_begun(SHARE)
    assert len(calls.begun) == SHARE and calls.works.waiting_calls("greedy") == MORE
    quiet = [calls.send("quiet", n) for n in range(THREADS - SHARE)]
    await calls.have_begun(THREADS)
    assert sorted(calls.begun[SHARE:]) == [("quiet", n) for n in range(THREADS - SHARE)]
    calls.end(1000)
    assert await asyncio.gather(*greedy) == list(range(SHARE + MORE))
    await asyncio.gather(*quiet)
    assert sorted(calls.begun[THREADS:]) == [("greedy", SHARE + n) for n in range(MORE)]
    assert calls.works.waiting_calls("greedy") == 0


@on_loop
async def test_whoever_has_no_name_has_all_threads(calls):
    sent = [calls.send("", n) for n in range(THREADS + MORE)]
    await calls.have_begun(THREADS)
    calls.end(1000)
    await asyncio.gather(*sent)


@on_loop
async def test_a_work_that_nobody_waits_for_counts_until_it_ends(calls):
    sent = [calls.send("greedy", n) for n in range(SHARE)]
    await calls.have_begun(SHARE)
    for call in sent:
        call.cancel()
    await asyncio.wait(sent)
    again = [calls.send("greedy", SHARE + n) for n in range(SHARE)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(calls.begun) == SHARE and calls.works.waiting_calls("greedy") == SHARE
    calls.end(1000)
    assert await asyncio.gather(*again) == [SHARE + n for n in range(SHARE)]


@on_loop
async def test_who_waits_in_a_queue_may_leave_it(calls):
    """By a cancelled call, or because the client has gone; the next ones get on."""
    gone = asyncio.Event()

    async def has_gone() -> None:
        await gone.wait()

    first = [calls.send("greedy", n) for n in range(SHARE)]
    cancelled = calls.send("greedy", 100)
    left = calls.send("greedy", 101, gone=has_gone)
    last = calls.send("greedy", 102)
    await calls.have_begun(SHARE)
    assert calls.works.waiting_calls("greedy") == 3
    cancelled.cancel()
    gone.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(DeadlineError, match="has disconnected"):
        await left
    for _ in range(10):
        await asyncio.sleep(0)
    assert calls.works.waiting_calls("greedy") == 1
    calls.end(1000)
    await asyncio.gather(*first, last)
    assert calls.begun[SHARE:] == [("greedy", 102)]


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("is_told_first", [False, True])
@on_loop
async def test_a_call_that_is_cancelled_as_its_turn_comes_leaves_it_to_the_next(
    calls, is_told_first, is_cut_off
):
    """Its future is done, though nobody has told the queue; or its turn was, just before."""
    first = [calls.send("greedy", n) for n in range(SHARE)]
    await calls.have_begun(SHARE)
    (client,) = calls.works._queues.values()
    waits = [asyncio.ensure_future(client.enter()) for _ in range(2)]
    await asyncio.sleep(0)
    if not is_told_first:
        waits[0].cancel()
    if is_cut_off:
        client.cut_off(StoreClosedError("over"))
    else:
        client.leave()
    waits[0].cancel()
    await asyncio.wait(waits)
    assert waits[0].cancelled()
    assert isinstance(waits[1].exception(), StoreClosedError if is_cut_off else type(None))
    assert (client.inside, client.waiting) == (SHARE, 0)
    calls.end(1000)
    await asyncio.gather(*first)
    await asyncio.to_thread(calls.works.close)


@on_loop
async def test_who_waits_in_a_queue_is_cut_off(calls):
    sent = [calls.send("greedy", n) for n in range(SHARE + MORE)]
    await calls.have_begun(SHARE)
    calls.works.cut_off()
    for call in sent[SHARE:]:  # at once: no thread has to come free
        with pytest.raises(StoreClosedError, match="cut off"):
            await call
    calls.end(1000)
    for call in sent[:SHARE]:
        with pytest.raises(StoreClosedError, match="cut off"):
            await call
    assert len(calls.begun) == SHARE


@on_loop
async def test_so_many_of_a_client_may_wait(calls):
    sent = [calls.send("greedy", n, client_calls_max=MORE) for n in range(SHARE + MORE)]
    await calls.have_begun(SHARE)
    with pytest.raises(OverloadedError, match=r"'greedy' .* queue_calls"):
        await calls.send("greedy", 100, client_calls_max=MORE)
    quiet = calls.send("quiet", 0, client_calls_max=MORE)
    await calls.have_begun(SHARE + 1)
    calls.end(1000)
    await asyncio.gather(*sent, quiet)

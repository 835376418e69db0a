"""Verbs that return at once: what they return, their order, cancelling, bounds and closing."""

import asyncio
import inspect
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    OutcomeUnknownError,
    OverloadedError,
    StoreClosedError,
    TableNotFoundError,
)
from embstore.handles.store import Store
from embstore.handles.table import Table
from embstore_client import (
    BackgroundStore,
    BackgroundTable,
    Call,
    background,
    connect_async,
    futures,
)
from tests.service.frequency_samples import DIM, add
from tests.serving import patient

PATIENT = {"timeout_s": 300.0, "connect_timeout_s": 300.0}


def opened(path: Path) -> Store:
    store = embstore.open(path, device="cpu", cache_bytes=1 << 22)
    add(store, "ads")
    return store


@pytest.fixture(params=["embedded", "grpc", "shared_memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "embedded":
        with opened(tmp_path / "embedded") as store:
            yield store
        return
    server = request.getfixturevalue("server")
    address = server.address if request.param == "grpc" else f"unix:{server.socket}"
    with patient(address) as store:
        yield store


def batches(count: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(7)
    for _ in range(count):
        keys = rng.integers(0, 100, 8)
        yield keys, rng.standard_normal((8, DIM), dtype=np.float32)


async def begun(call: Call[Any]) -> None:
    while not call.running():  # noqa: ASYNC110 - a thread of the store says so, not the loop
        await asyncio.sleep(0)


GRADIENTS = np.ones((1, DIM), np.float32)


# What calls return


def test_calls_are_futures_that_give_what_the_verbs_do(store):
    ads = store.table("ads")
    with background(store) as behind:
        table = behind.of(ads)
        done = table.update([1, 2], np.ones((2, DIM), np.float32)).result()
        assert (done.t, done.skipped) == (1, False)
        np.testing.assert_array_equal(table.lookup([1, 5]).result(), ads.lookup([1, 5]))
        assert behind.table("ads").result().table_id == ads.table_id
        assert table.digest().result() == ads.digest()
        table.set_learning_rate(0.5).result()
        assert ads.learning_rate == 0.5
    assert "ads" in store.tables()  # it is open still


@pytest.mark.parametrize("way", ["grpc", "shared_memory"])
def test_calls_are_awaited(way, server):
    address = server.address if way == "grpc" else f"unix:{server.socket}"
    options = PATIENT | ({"transport": "grpc"} if way == "grpc" else {})

    async def train() -> tuple[str, int]:
        async with connect_async(address, **options) as store:
            items = await store.create_table(
                "items",
                dim=DIM,
                rows=10,
                optimizer=embstore.Sgd(0.5),
                initializer=embstore.Constant(1.0),
            )
            await items.update([3], GRADIENTS)
            rows = (await store.lookup({"items": [3, 4]}))["items"]
            np.testing.assert_array_equal(rows[:, 0], [0.5, 1.0])
            found = await asyncio.gather(*(items.lookup([key]) for key in range(10)))
            assert [float(rows[0, 0]) for rows in found] == [1.0] * 3 + [0.5] + [1.0] * 6
            return await items.digest(), (await items.describe()).t

    digest, t = asyncio.run(train())
    served = server.on_engine(lambda store: store.table("items").digest())
    assert (digest, t) == (served, 1)


def test_errors_are_those_of_the_verbs(store):
    async def fail() -> None:
        with background(store) as behind:
            table = behind.of(store.table("ads"))
            with pytest.raises(TableNotFoundError):
                await behind.table("nope")
            with pytest.raises(InvalidArgumentError, match="float64") as found:
                await table.update([1], np.ones((1, DIM)))
            assert "Rpc" not in "".join(traceback.format_exception(found.value))

    asyncio.run(fail())
    assert store.table("ads").t == 0


# Order


def test_writes_are_done_in_the_order_in_which_they_were_made(store, tmp_path):
    with background(store) as behind:
        table = behind.of(store.table("ads"))
        calls = []
        for keys, gradients in batches(40):
            calls.append(table.update(keys, gradients))
            table.lookup(keys)
        told = [call.result().command for call in calls]
    assert told == sorted(told)
    with opened(tmp_path / "one after the other") as alone:
        for keys, gradients in batches(40):
            alone.table("ads").update(keys, gradients)
        assert store.table("ads").digest() == alone.table("ads").digest()


def test_reads_go_beside_writes(server):
    with patient(server.address) as store, background(store) as behind:
        table = behind.of(store.table("ads"))
        with server.held():
            update = table.update([1], GRADIENTS)
            behind.server_info().result()  # which needs no engine
            assert not update.done()
        assert update.result().t == 1


# Cancelling


def test_a_call_that_waits_for_its_turn_is_cancelled_and_never_sent(server):
    with patient(server.address) as store, background(store) as behind:
        table = behind.of(store.table("ads"))
        with server.held():
            first, second, third = (table.update([n], GRADIENTS) for n in range(3))
            assert second.cancel()
        assert (first.result().t, third.result().t) == (1, 2)
        with pytest.raises(CancelledError):
            second.result()


def test_a_call_that_has_begun_is_finished_though_its_task_is_cancelled(server):
    async def train() -> int:
        async with connect_async(server.address, transport="grpc", **PATIENT) as store:
            table = await store.table("ads")
            with server.held():
                call = table.update([1, 2], np.ones((2, DIM), np.float32))
                await begun(call)
                task = asyncio.ensure_future(call)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await table.flush()  # in its turn, after the update
            return (await table.describe()).t

    assert asyncio.run(train()) == 1


# The event loop


def test_the_event_loop_runs_while_a_call_waits_at_the_server(server):
    async def train() -> None:
        async with connect_async(server.address, transport="grpc", **PATIENT) as store:
            table = await store.table("ads")
            with server.held() as go:
                lookup = asyncio.ensure_future(table.lookup([1]))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not lookup.done()
                go.set()  # by the loop, which would wait for ever if the call had stopped it
                assert (await lookup).shape == (1, DIM)

    asyncio.run(train())


def test_a_connection_is_awaited_too():
    async def fail() -> None:
        with pytest.raises(DeadlineError, match="no embstore server was ready"):
            await connect_async("127.0.0.1:1", connect_timeout_s=0.05)

    asyncio.run(fail())


def test_a_connection_that_nobody_waits_for_is_closed(server):
    made: list[Store] = []

    async def give_up() -> connect_async:
        loop, cancelled = asyncio.get_running_loop(), threading.Event()
        connecting = connect_async(server.address)

        def slowly() -> Store:
            made.append(patient(server.address))
            loop.call_soon_threadsafe(task.cancel)
            cancelled.wait()
            return made[0]

        async def wait_for_it() -> None:
            await connecting

        connecting._connect = slowly  # type: ignore[assignment]
        task = asyncio.create_task(wait_for_it())
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        return connecting

    asyncio.run(give_up())._calls.join()
    with pytest.raises(StoreClosedError):
        made[0].tables()


# Bounds, and closing


def test_calls_and_threads_are_bounded(server, monkeypatch):
    monkeypatch.setattr(futures, "CALLS_MAX", 12)
    with patient(server.address) as store, background(store, threads=3) as behind:
        table = behind.of(store.table("ads"))
        with server.held():
            calls: list[Any] = [table.lookup([n]) for n in range(10)]
            calls += [table.update([n], GRADIENTS) for n in range(2)]
            with pytest.raises(OverloadedError, match="12 calls of this store are in flight"):
                table.lookup([1])
            named = [t.name for t in threading.enumerate() if t.name.startswith("embstore ")]
            assert len(named) == 4
        wait(calls)
        assert table.lookup([1]).result().shape == (1, DIM)


@pytest.mark.parametrize("threads", [0, -1, "two"])
def test_threads_are_one_or_more(threads, server):
    with patient(server.address) as store:
        with pytest.raises(InvalidArgumentError, match="expected threads to be 1 or more"):
            background(store, threads=threads)


def test_closing_cuts_off_what_has_begun_and_gives_up_the_rest(server):
    async def train() -> None:
        store = await connect_async(server.address, transport="grpc", **PATIENT)
        table = await store.table("ads")
        with server.held():
            first, second = table.update([1], GRADIENTS), table.update([2], GRADIENTS)
            await begun(first)
            await store.close()
            with pytest.raises((OutcomeUnknownError, StoreClosedError)):
                await first
            with pytest.raises(StoreClosedError):
                await second
        with pytest.raises(StoreClosedError):
            await table.lookup([1])
        await store.close()

    asyncio.run(train())


def test_closing_ends_every_wait_and_callbacks_may_call(server):
    """What waits for its turn is told, and nothing that hears of it can hang."""
    told: list[Any] = []

    def again(call: Any) -> None:
        with pytest.raises(StoreClosedError) as refused:
            table.update([1], GRADIENTS)
        told.append(refused.value)

    with patient(server.address) as store:
        behind = background(store)
        table = behind.of(store.table("ads"))
        with server.held():
            calls = [table.update([n], GRADIENTS) for n in range(4)]
            calls[1].cancel()
            calls[2].add_done_callback(again)
            behind.close().result()
        assert not wait(calls, timeout=600).not_done
        assert len(told) == 1
        assert calls[1].cancelled()
        for call in calls[2:]:
            assert isinstance(call.exception(), StoreClosedError)


# Every verb


class GrownTable(Table):
    def new_verb(self, keys: Any, *, loud: bool = False) -> tuple[str, Any, bool]:
        return self.name, keys, loud


def test_a_verb_that_has_no_line_is_done_in_order(server):
    with patient(server.address) as store, background(store) as behind:
        ads = store.table("ads")
        ads.__class__ = GrownTable
        table: Any = behind.of(ads)
        with server.held():
            update = table.update([1], GRADIENTS)
            later = table.new_verb([1, 2], loud=True)
            assert not later.done()
        assert later.result() == ("ads", [1, 2], True)
        assert update.done()
        for name in ("no_verb", "_executor", "scan", "config"):
            with pytest.raises(AttributeError, match=f"'BackgroundTable' .* attribute '{name}'"):
                getattr(table, name)


@pytest.mark.parametrize(
    ("handle", "behind", "apart"),
    [
        (Table, BackgroundTable, {"scan", "leaves"}),
        (Store, BackgroundStore, {"run", "session", "close"}),
    ],
)
def test_declared_verbs_have_the_arguments_of_their_handle(handle, behind, apart):
    verbs = {
        name: verb
        for name, verb in inspect.getmembers(handle, inspect.isfunction)
        if not name.startswith("_") and name not in apart
    }
    assert not apart & set(vars(behind)) - {"close"}
    declared = set(verbs) & set(vars(behind))
    assert len(declared) > 10
    for name in declared:
        assert inspect.signature(vars(behind)[name]) == inspect.signature(verbs[name])

"""The server's limits when they are reached: who is refused, who waits, and whose turn comes."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from embstore.config import Constant, Sgd
from embstore.errors import DeadlineError, InvalidArgumentError
from embstore.handles.store import Store
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from embstore_client import connect
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.faults.wire import Wire, acknowledged, lookup, refusal, update


def message(n: int, origin: pb.Origin | None = None) -> bytes:
    return update(gradients(n), origin).joined()


def command(reply: Any) -> int:
    return int(acknowledged(reply).context.command)


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """A thread for a call of the client library."""
    with ThreadPoolExecutor(1) as made:
        yield made


# Deadlines


@pytest.mark.parametrize("timeout", [None, 1000.0], ids=["none", "long"])
def test_deadline_is_at_most_the_servers(serve, timeout):
    served = serve(call_timeout_s=0.05, call_timeout_max_s=0.05)
    served.on_engine(make_tables)
    with served.held(), Wire(served.address) as wire:
        for name, request in (("Update", message(1)), ("ListTables", b"")):
            found = refusal(lambda n=name, r=request: wire.unary(n, r, timeout))
            assert (found.code, found.error) == ("DEADLINE_EXCEEDED", "DeadlineError")
            assert ("read t" in found.text) == (name == "Update")
        served.await_queue(0)
    served.assert_idle()


# Bytes in flight


def test_what_carries_no_arrays_is_answered_whatever_is_in_flight(serve):
    """A lease that is not renewed ends a session, and a server that is not known is no server."""
    served = serve()
    served.on_engine(make_tables)
    with served.service.inflight.reservation() as reserved, served.connect() as store:
        sessions = store.sessions
        sessions.open("job", store.tables())
        member = sessions.join("job", 0).member
        reserved.add_unchecked(1 << 40)
        found = refusal(lambda: Wire(served.address).unary("Update", message(1)))
        assert found.error == "OverloadedError"
        sessions.renew(member)
        served.connect().close()


# The queue


@pytest.fixture
def narrow(serve: Callable[..., Served]) -> Served:
    """A server whose queue has two places."""
    served = serve(queue_calls_max=2)
    served.on_engine(make_tables)
    return served


def test_full_queue_refuses_at_once_and_a_client_backs_off(narrow, background):
    ledger = Ledger()
    with Wire(narrow.address) as wire, narrow.connect() as store:
        ledger.acknowledged[0] = store.update(gradients(0)).command  # it knows the tables now
        with narrow.held():
            calls = [wire.begin("Update", message(n)) for n in (1, 2)]
            narrow.await_queue(2)
            for _ in range(5):
                found = refusal(lambda: wire.unary("Update", message(4)))
                assert (found.code, found.error) == ("UNAVAILABLE", "OverloadedError")
                assert "queue_calls_max" in found.text
            waiting = background.submit(store.update, gradients(3))
            until(lambda: narrow.answered("Update", "UNAVAILABLE") >= 7)
        ledger.acknowledged |= {n: command(c.result()) for n, c in enumerate(calls, 1)}
        ledger.acknowledged[3] = waiting.result(PATIENCE_S).command
        ledger.check(store)
    narrow.assert_idle()


def test_client_gives_up_on_a_full_queue_at_its_deadline(narrow):
    with Wire(narrow.address) as wire, narrow.held():
        calls = [wire.begin("Update", message(n)) for n in (1, 2)]
        narrow.await_queue(2)
        impatient = connect(narrow.address, timeout_s=0.1)
        with impatient, pytest.raises(DeadlineError, match="queue_calls_max"):
            impatient.create_table(
                "t", dim=1, rows=1, optimizer=Sgd(1.0), initializer=Constant(0.0)
            )
        for call in calls:
            call.cancel()


# Bytes


@pytest.fixture
def small(serve: Callable[..., Served]) -> Served:
    """A server with room for a few messages."""
    served = serve(unary_bytes_max=10_000, inflight_bytes_max=20_000)
    served.on_engine(make_tables)
    served.on_engine(
        lambda store: store.create_table(
            "wide", dim=64, rows=20_000, optimizer=Sgd(1.0), initializer=Constant(0.0)
        )
    )
    return served


def wide(count: int) -> dict[str, tuple[Any, Any]]:
    return {"wide": (np.arange(count), np.ones((count, 64), np.float32))}


def test_full_memory_refuses_and_lets_a_client_wait(small, background):
    first, small_one = update(wide(60)), message(1)
    with Wire(small.address) as wire, small.connect() as store:
        store.table("wide")  # it knows the table now
        with small.held():
            held = wire.begin_stream("Update", first.chunks())
            until(lambda: small.worker.waiting_calls == 1)
            assert small.service.inflight.reserved_bytes == first.total_bytes
            found = refusal(lambda: wire.stream("Update", update(wide(60)).chunks()))
            assert (found.code, found.error) == ("UNAVAILABLE", "OverloadedError")
            assert "inflight_bytes_max" in found.text
            fits = wire.begin("Update", small_one)
            until(lambda: small.worker.waiting_calls == 2)
            waiting = background.submit(store.update, wide(35))
            until(lambda: small.answered("UpdateStream", "UNAVAILABLE") >= 2)
        list(held)
        commands = [command(fits.result()), waiting.result(PATIENCE_S).command]
        assert commands == [5, 6]
    small.assert_idle()


def test_message_larger_than_all_the_room_is_taken_alone(small):
    with small.connect() as store:
        assert store.update(wide(1000)).command == 4
        assert store.lookup({"wide": np.arange(1000)})["wide"].sum() == -64_000
    small.assert_idle()


@pytest.mark.parametrize("verb", ["request", "reply"])
def test_unary_message_above_the_limit_names_the_stream(verb, small):
    with Wire(small.address) as wire:
        if verb == "request":
            found = refusal(lambda: wire.unary("Update", update(wide(50)).joined()))
            assert "UpdateStream" in found.text
        else:
            found = refusal(lambda: wire.unary("Lookup", lookup({"wide": range(50)}).joined()))
            assert "LookupStream" in found.text
        assert (found.code, found.error) == ("INVALID_ARGUMENT", "InvalidArgumentError")
        assert "unary_bytes_max" in found.text
        assert command(wire.unary("Update", message(1))) == 4
    small.assert_idle()


def test_message_above_what_grpc_receives_is_refused_before_it_is_read(small):
    chunk = pb.Chunk(total_bytes=32 << 20, piece=bytes(32 << 20)).SerializeToString()
    announced = pb.Chunk(total_bytes=(1 << 30) + (1 << 20) + 1, piece=b"x").SerializeToString()
    with Wire(small.address) as wire:
        for call in (
            lambda: wire.unary("Update", bytes(32 << 20)),
            lambda: wire.stream("Update", [chunk]),
        ):
            assert refusal(call).code == "RESOURCE_EXHAUSTED"
        assert "at most" in refusal(lambda: wire.stream("Update", [announced])).text
        assert command(wire.unary("Update", message(1))) == 4
    small.assert_idle()


def test_client_says_what_is_too_large(small, monkeypatch):
    monkeypatch.setattr("embstore_client.grpc_wire.UNARY_BYTES", 1 << 30)
    with small.connect() as store:
        store.executor.transport.wire._unary_bytes_max = 1 << 30  # as if it had not been told
        with pytest.raises(InvalidArgumentError, match="UpdateStream"):
            store.update(wide(100))
        huge = {"wide": (np.arange(20_000), np.zeros((20_000, 64), np.float32))}
        with pytest.raises(InvalidArgumentError, match="too large"):
            store.update(huge)


# Turns


def test_clients_take_turns(served, ledger):
    wires = [Wire(served.address) for _ in range(4)]
    for wire in wires:
        wire.unary("ListTables", b"")
    calls: list[list[Any]] = []
    with served.held():
        for at, wire in enumerate(wires):
            calls.append([wire.begin("Update", message(10 * at + n)) for n in range(10)])
            served.await_queue(10 * (at + 1))
    for at, some in enumerate(calls):
        for n, call in enumerate(some):
            ledger.acknowledged[10 * at + n] = command(call.result())
    order = sorted(ledger.acknowledged, key=lambda n: ledger.acknowledged[n])
    assert [n // 10 for n in order] == [0, 1, 2, 3] * 10
    for wire in wires:
        wire.close()


# What needs no engine is answered where it arrives, whatever else waits (`Effect.PROMPT`)

CLIENTS = 10
KEYS = np.arange(8)
PROFILE = Profile({"rows": TableProfile("rows", 0, KEYS, KEYS + 1, int((KEYS + 1).sum()))})
LONG_CALLS: list[Callable[[Store], Any]] = [
    lambda store: store.pin_hot_set(HotSet({"rows": KEYS}, 1)),
    lambda store: store.import_profile(PROFILE),
    lambda store: store.warm_cache(0.5),
]


def test_leases_are_renewed_while_ten_clients_pin_import_and_warm(served):
    busy, free = threading.Event(), threading.Event()

    def take_the_engine(_: Store) -> None:
        with served.store.executor.tables.frame.reading():
            busy.set()
            free.wait(PATIENCE_S)

    with ExitStack() as opened:
        stores = [opened.enter_context(served.connect()) for _ in range(CLIENTS)]
        stores[0].sessions.open("s", ["rows"], world_size=CLIENTS)
        members = [store.sessions.join("s", rank).member for rank, store in enumerate(stores)]
        pool = opened.enter_context(ThreadPoolExecutor(len(LONG_CALLS) * CLIENTS + 1))
        opened.callback(free.set)
        taking = pool.submit(served.on_engine, take_the_engine)
        assert busy.wait(PATIENCE_S)
        waiting = [pool.submit(call, store) for store in stores for call in LONG_CALLS]
        # Of the warm-ups, which are of one share, there is one.
        until(
            lambda: (
                len(served.service.long_jobs.running) == 2 * CLIENTS + 1
                or any(call.done() for call in waiting)
            )
        )
        for store, member in zip(stores, members, strict=True):
            assert store.sessions.renew(member).name == "s"
        assert not any(call.done() for call in [taking, *waiting])
        free.set()
        for call in waiting:
            call.result(PATIENCE_S)
        assert stores[0].stats()["frequency"]["hot_set"]["pinned_rows"] == len(KEYS)
    served.assert_free()

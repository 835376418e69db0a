"""Memory that is shared with a server: whose arrays are whose, how much there is, who waits.

A result's arrays lie in the memory that the server wrote them into. They stay as they are as long
as somebody has them, whatever else happens; what is copied beside them is counted.
"""

import gc
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.errors import DeadlineError, OutcomeUnknownError, StoreClosedError
from embstore.handles.store import Store
from embstore_client import shared_memory as client_wire
from embstore_client.shared_memory import RESULTS_MAX
from embstore_proto import shared_memory as frames
from embstore_proto.shared_memory import Kind
from embstore_server.transports.shared_memory import port
from tests.service.faults.served import PATIENCE_S, Served, on_loop_call, until
from tests.service.faults.sharing import (
    DIM,
    TRANSPORT,
    EndedError,
    Owned,
    RawSharer,
    await_owned,
    keys,
    lookup,
    make_wide,
    update,
)
from tests.serving import patient

COUNT = 2500
SMALL_BYTES = 4 << 20
"""Of which half may be lent: two segments of the calls here, or one and no other."""


@pytest.fixture
def shared(serve: Callable[..., Served]) -> Served:
    """A server with a table of wide rows."""
    made = serve()
    made.on_engine(make_wide)
    return made


@pytest.fixture
def store(shared: Served) -> Iterator[Store]:
    """A client that shares memory with it."""
    with patient(f"unix:{shared.socket}") as made:
        yield made


def wire_of(store: Any) -> Any:
    return store.executor.transport.wire


def copied_bytes(served: Served) -> int:
    return served.service.traffic[TRANSPORT].copies.bytes


def gradients(count: int, value: float = 1.0) -> dict[str, tuple[Any, Any]]:
    return {"wide": (keys(count), np.full((count, DIM), value, np.float32))}


def rows_of(store: Store, count: int = COUNT) -> Any:
    return store.lookup({"wide": keys(count)})["wide"]


# Results


def test_rows_stay_as_they_were_whatever_is_written_and_looked_up_since(shared, store):
    with patient(f"unix:{shared.socket}") as other:
        kept = []
        for n in range(5):
            kept.append(rows_of(store))
            other.update(gradients(COUNT))
            store.update(gradients(COUNT, 0.0))
            rows_of(store, 2 * COUNT)
            rows_of(other)
            assert [(rows == -k).all() for k, rows in enumerate(kept)] == [True] * (n + 1)


def test_rows_may_be_changed_by_their_reader_alone(shared, store):
    rows = rows_of(store)
    rows += 7.0
    assert (rows_of(store) == 0.0).all()
    with patient(f"unix:{shared.socket}") as other:
        assert (rows_of(other) == 0.0).all()
    assert (rows == 7.0).all()


def test_rows_outlive_their_client_and_their_server(shared, store):
    store.update(gradients(COUNT))
    rows = rows_of(store)
    part = rows[10:20]
    store.close()
    assert (rows == -1.0).all()
    shared.stop()
    del rows
    gc.collect()
    part *= 2.0
    assert (part == -2.0).all()


def test_a_part_of_a_result_keeps_its_connection_until_it_is_dropped(shared, store):
    rows = rows_of(store)
    before = Owned.of(shared).connections
    part = rows[-1:, 3]
    del rows
    rows_of(store)
    assert Owned.of(shared).connections == before + 1
    assert part.tolist() == [0.0]
    del part
    for _ in range(5):
        rows_of(store)
    assert Owned.of(shared).connections == before + 1


def test_results_above_the_most_are_copied_and_right(shared, store):
    copies = wire_of(store).copies
    kept = []
    for n in range(RESULTS_MAX + 3):
        kept.append(rows_of(store))
        assert copies.bytes == max(n + 1 - RESULTS_MAX, 0) * kept[0].nbytes
        store.update(gradients(COUNT))
    assert all((rows == -n).all() for n, rows in enumerate(kept))
    connections = Owned.of(shared).connections
    kept.clear()
    gc.collect()
    before = copies.bytes
    assert (rows_of(store) == -RESULTS_MAX - 3).all()
    assert copies.bytes == before
    assert Owned.of(shared).connections <= connections


def test_rows_are_written_where_the_caller_wants_them(store):
    store.update(gradients(COUNT))
    out = np.zeros((COUNT, DIM), np.float32)
    rows = store.lookup({"wide": keys(COUNT)}, out={"wide": out})["wide"]
    assert rows is out and (out == -1.0).all()
    assert not wire_of(store).results


def test_what_is_copied_is_keys_of_large_calls_and_neither_rows_nor_gradients(shared, store):
    rows_of(store)  # from here on they are in the cache: it is looked up at once
    before = copied_bytes(shared)
    rows_of(store, 1000)  # its keys travel on the socket
    assert copied_bytes(shared) == before
    rows_of(store)
    assert copied_bytes(shared) == before + 8 * COUNT
    store.update(gradients(COUNT))
    assert copied_bytes(shared) == before + 2 * 8 * COUNT
    offsets = np.arange(0, COUNT + 1, 5)
    before = copied_bytes(shared)
    store.table("wide").lookup_pooled(keys(COUNT), offsets)
    assert copied_bytes(shared) == before + 8 * (COUNT + len(offsets))
    before = copied_bytes(shared)
    store.table("wide").read_rows(keys(COUNT))
    assert copied_bytes(shared) == before + 8 * COUNT
    assert wire_of(store).copies.bytes == 0


def test_a_connection_that_was_idle_is_used_again(shared, store, monkeypatch):
    monkeypatch.setattr(client_wire, "_FRESH_S", 0.0)
    rows_of(store, 10)
    wire = wire_of(store)
    (connection,) = wire._open
    for _ in range(3):
        rows_of(store, 10)
        assert wire._open == {connection}
    on_loop_call(lambda: [one.close() for one in tuple(shared.sharing._connections)])
    rows_of(store, 10)  # its server has ended it
    assert connection not in wire._open


# Room


@pytest.fixture
def small(serve: Callable[..., Served]) -> Served:
    """A server that lends little."""
    made = serve(inflight_bytes_max=SMALL_BYTES, unary_bytes_max=SMALL_BYTES // 2)
    made.on_engine(make_wide)
    return made


def fill(served: Served) -> list[RawSharer]:
    """Have clients ask for segments until no more are lent."""
    found = []
    while True:
        found.append(RawSharer(served.socket))
        said = found[-1].ask_for(1 << 20)
        if said.kind == Kind.ERROR:
            assert said.refusal.name == "OverloadedError"
            assert "shared with clients" in said.refusal.text
            found.pop().close()
            return found


def test_a_full_loan_is_refused_until_results_are_dropped(small):
    before = Owned.of(small)
    with ThreadPoolExecutor(1) as background, patient(f"unix:{small.socket}") as waiting:
        waiting.table("wide")
        sharers = fill(small)
        assert Owned.of(small).lent_bytes <= SMALL_BYTES // 2
        with pytest.raises(DeadlineError, match="shared with clients"):
            impatient(waiting, lookup(COUNT), 0.2)
        call = background.submit(rows_of, waiting)
        for sharer in sharers:
            assert sharer.execute(lookup(10)).kind == Kind.RESULT  # what is small goes on
            sharer.close()
        assert call.result(PATIENCE_S).shape == (COUNT, DIM)
        del call
    await_owned(small, before)


def impatient(store: Any, command: c.Command[Any], seconds: float) -> Any:
    return store.executor.execute(command, timeout_s=seconds)


def test_a_full_loan_leaves_grpc_to_who_has_both(small):
    with patient(small.address, transport="auto") as store:
        assert wire_of(store).shares_memory
        sharers = fill(small)
        before = small.service.traffic["grpc"].calls
        store.update(gradients(COUNT))
        assert (rows_of(store) == -1.0).all()
        assert small.service.traffic["grpc"].calls == before + 2
        assert wire_of(store).shares_memory
        for sharer in sharers:
            sharer.close()
        until(lambda: Owned.of(small).lent_bytes == 0)
        assert (rows_of(store) == -1.0).all()
        assert small.service.traffic["grpc"].calls == before + 2
    small.assert_free()


# Who does not go on


def flood(sharer: RawSharer) -> None:
    """Ask again and again, and read nothing."""
    call = b"".join(map(bytes, frames.call("GetStats", 3000.0, b"", b"", None)))
    try:
        for _ in range(100_000):
            sharer.say(call)
    except (EndedError, ConnectionError):
        pass


def test_a_client_that_reads_no_answer_is_cut_off_alone(serve):
    served = serve(read_timeout_s=0.2)
    served.on_engine(make_wide)
    before = Owned.of(served)
    with patient(f"unix:{served.socket}") as good:
        with RawSharer(served.socket) as sharer:
            sharer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            sharer.ask_for(1 << 20)
            flood(sharer)
            good.update(gradients(COUNT))
            assert (rows_of(good) == -1.0).all()
            with pytest.raises((EndedError, ConnectionError)):
                while True:
                    sharer.next()
    await_owned(served, before)


def test_connections_that_are_idle_are_ended_and_rows_and_clients_outlive_that(serve, monkeypatch):
    """In the middle of a frame, too: what has begun to come and does not go on is idle."""
    monkeypatch.setattr(port, "_LOOK_S", 0.01)
    served = serve()
    served.on_engine(make_wide)
    before = Owned.of(served)
    with patient(f"unix:{served.socket}") as store, RawSharer(served.socket) as sharer:
        store.update(gradients(COUNT))
        rows = rows_of(store)
        sharer.ask_for(1 << 20)
        sharer.say(b"\x09\0")
        monkeypatch.setattr(port, "_IDLE_S", -1.0)
        with pytest.raises(EndedError):
            sharer.next()
        until(lambda: Owned.of(served).segment_bytes == before.segment_bytes)
        monkeypatch.setattr(port, "_IDLE_S", PATIENCE_S)
        store.update(gradients(COUNT))
        assert (rows == -1.0).all() and (rows_of(store) == -2.0).all()
        del rows
    await_owned(served, before)


# Deadlines and ends


def test_a_connection_whose_deadline_passed_is_not_used_again(shared, store, monkeypatch):
    """At the client: what the server answers at its own deadline leaves a connection in order."""
    call = frames.call
    monkeypatch.setattr(frames, "call", lambda verb, _, *rest: call(verb, PATIENCE_S, *rest))
    rows_of(store)
    (used,) = wire_of(store)._open
    with shared.held():
        for command in (lookup(COUNT), update(COUNT)):
            with pytest.raises(DeadlineError):
                impatient(store, command, 0.05)
        assert used not in wire_of(store)._open
        until(lambda: Owned.of(shared).connections == 0)
    store.table("wide").assign(keys(COUNT), np.full((COUNT, DIM), 5.0, np.float32))
    assert (rows_of(store) == 5.0).all()
    assert store.table("wide").t in (0, 1)


@pytest.mark.parametrize("writes", [False, True], ids=["lookup", "update"])
def test_close_ends_the_calls_of_other_threads(writes, shared):
    before = Owned.of(shared)
    with ThreadPoolExecutor(1) as background:
        store = patient(f"unix:{shared.socket}")
        store.table("wide")
        with shared.held():
            begin: Any = store.update if writes else store.lookup
            call = background.submit(begin, gradients(COUNT) if writes else {"wide": keys(COUNT)})
            shared.await_queue(1)
            store.close()
            with pytest.raises(OutcomeUnknownError if writes else StoreClosedError):
                call.result(PATIENCE_S)
        with pytest.raises(StoreClosedError):
            rows_of(store)
        del call
    await_owned(shared, before)

"""The server's limits when they are reached: who is refused, who waits, and whose turn comes."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embstore.config import Constant, Sgd
from embstore.errors import DeadlineError, InvalidArgumentError
from embstore_client import connect
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.faults.wire import Wire, acknowledged, lookup, refusal, update


def message(n: int, origin: pb.Origin | None = None) -> bytes:
    return update(gradients(n), origin).joined()


def command(reply: Any) -> int:
    return int(acknowledged(reply).context.command)


class Background:
    """A call of the client library on a thread."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._function, self._args = function, args
        self.result: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._function(*self._args)

    def join(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.result


# Deadlines


def test_deadline_passes_in_the_queue(served: Served, wire: Wire, ledger: Ledger) -> None:
    with served.held():
        found = refusal(lambda: wire.unary("Update", message(1), timeout=0.05))
        assert found.code == "DEADLINE_EXCEEDED"
        impatient = connect(served.address, timeout_s=0.05)
        with impatient, pytest.raises(DeadlineError):
            impatient.drop_table("rows")
        served.await_queue(0)
    ledger.refused.add(1)


def test_call_without_a_deadline_gets_the_servers(
    serve: Callable[..., Served],
) -> None:
    served = serve(call_timeout_s=0.05)
    served.on_engine(make_tables)
    with served.held(), Wire(served.address) as wire:
        found = refusal(lambda: wire.unary("Update", message(1), timeout=None))
        assert (found.code, found.error) == ("DEADLINE_EXCEEDED", "DeadlineError")
        assert "read t" in found.text
        served.await_queue(0)
    served.assert_idle()


def test_long_deadline_is_cut(serve: Callable[..., Served]) -> None:
    served = serve(call_timeout_s=0.02, call_timeout_max_s=0.05)
    with served.held(), Wire(served.address) as wire:
        found = refusal(lambda: wire.unary("ListTables", b"", timeout=1000.0))
        assert found.error == "DeadlineError"
    served.assert_idle()


# The queue


@pytest.fixture
def narrow(serve: Callable[..., Served]) -> Served:
    """A server whose queue has two places."""
    served = serve(queue_calls_max=2)
    served.on_engine(make_tables)
    return served


def test_full_queue_refuses_at_once(narrow: Served) -> None:
    ledger = Ledger()
    with Wire(narrow.address) as wire, narrow.connect() as store:
        with narrow.held():
            calls = [wire.begin("Update", message(n)) for n in (1, 2)]
            narrow.await_queue(2)
            for _ in range(5):
                found = refusal(lambda: wire.unary("Update", message(3)))
                assert (found.code, found.error) == ("UNAVAILABLE", "OverloadedError")
                assert "queue_calls_max" in found.text
        ledger.acknowledged = {n: command(c.result()) for n, c in enumerate(calls, 1)}
        ledger.check(store)
    narrow.assert_idle()


def test_client_backs_off_from_a_full_queue(narrow: Served) -> None:
    ledger = Ledger()
    with Wire(narrow.address) as wire, narrow.connect() as store:
        ledger.acknowledged[0] = store.update(gradients(0)).command  # it knows the tables now
        with narrow.held():
            calls = [wire.begin("Update", message(n)) for n in (1, 2)]
            narrow.await_queue(2)
            waiting = Background(store.update, gradients(3))
            until(lambda: narrow.answered("Update", "UNAVAILABLE") >= 2)
        ledger.acknowledged |= {n: command(c.result()) for n, c in enumerate(calls, 1)}
        ledger.acknowledged[3] = waiting.join().command
        ledger.check(store)
    narrow.assert_idle()


def test_client_gives_up_on_a_full_queue_at_its_deadline(narrow: Served) -> None:
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


def test_full_memory_refuses_and_lets_a_client_wait(small: Served) -> None:
    first, small_one = update(wide(60)), message(1)
    with Wire(small.address) as wire, small.connect() as store:
        store.table("wide")  # it knows the table now
        with small.held():
            held = wire.begin_stream("Update", first.chunks())
            until(lambda: small.service.inflight.held_bytes == first.total_bytes)
            found = refusal(lambda: wire.stream("Update", update(wide(60)).chunks()))
            assert (found.code, found.error) == ("UNAVAILABLE", "OverloadedError")
            assert "inflight_bytes_max" in found.text
            fits = wire.begin("Update", small_one)
            until(lambda: small.worker.waiting_calls == 2)
            waiting = Background(store.update, wide(35))
            until(lambda: small.answered("UpdateStream", "UNAVAILABLE") >= 2)
        list(held)
        commands = [command(fits.result()), waiting.join().command]
        assert commands == [5, 6]
    small.assert_idle()


def test_message_larger_than_all_the_room_is_taken_alone(small: Served) -> None:
    with small.connect() as store:
        assert store.update(wide(1000)).command == 4
        assert store.lookup({"wide": np.arange(1000)})["wide"].sum() == -64_000
    small.assert_idle()


@pytest.mark.parametrize("verb", ["request", "reply"])
def test_unary_message_above_the_limit_names_the_stream(verb: str, small: Served) -> None:
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


def test_message_above_what_grpc_receives_is_refused_before_it_is_read(small: Served) -> None:
    with Wire(small.address) as wire:
        found = refusal(lambda: wire.unary("Update", bytes(32 << 20)))
        assert found.code == "RESOURCE_EXHAUSTED"
        assert command(wire.unary("Update", message(1))) == 4
    small.assert_idle()


def test_client_sends_what_is_large_as_a_stream(small: Served) -> None:
    with small.connect() as store:
        assert store.update(wide(30)).command == 4
        assert small.answered("UpdateStream", "OK") == 1
        assert store.lookup({"wide": np.arange(30)})["wide"].sum() == -30 * 64
        assert small.answered("LookupStream", "OK") == 1


def test_client_says_what_is_too_large(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore_client.transport.UNARY_BYTES", 1 << 30)
    with small.connect() as store:
        store._calls.transport._unary_bytes_max = 1 << 30  # as if it had not been told
        with pytest.raises(InvalidArgumentError, match="UpdateStream"):
            store.update(wide(100))
        huge = {"wide": (np.arange(20_000), np.zeros((20_000, 64), np.float32))}
        with pytest.raises(InvalidArgumentError, match="too large"):
            store.update(huge)


# Turns


def test_client_with_one_call_waits_for_one_of_another_with_a_hundred(
    served: Served, wire: Wire, ledger: Ledger
) -> None:
    with Wire(served.address) as other:
        other.unary("ListTables", b"")  # connected
        with served.held():
            many = [wire.begin("Update", message(n)) for n in range(100)]
            served.await_queue(100)
            one = other.begin("Update", message(100))
            served.await_queue(101)
        ledger.acknowledged = {n: command(call.result()) for n, call in enumerate(many)}
        ledger.acknowledged[100] = command(one.result())
    first = Ledger().first_command
    assert ledger.acknowledged[100] <= first + 1


def test_clients_take_turns(served: Served, ledger: Ledger) -> None:
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


def test_withdrawn_calls_give_their_turn_away(served: Served, wire: Wire, ledger: Ledger) -> None:
    with served.held():
        calls = [wire.begin("Update", message(n)) for n in range(40)]
        served.await_queue(40)
        for call in calls[::2]:
            call.cancel()
        served.await_queue(20)
    for n in range(1, 40, 2):
        ledger.acknowledged[n] = command(calls[n].result())
    ledger.refused |= set(range(0, 40, 2))

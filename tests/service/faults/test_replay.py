"""A mutating call that is sent again is applied once, whatever happened to its first attempt."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from embstore import commands
from embstore.engine.engine import HANDLERS
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path import replay
from tests.service.faults.ledger import Ledger, gradients
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.faults.test_limits import command, message
from tests.service.faults.wire import Sender, Wire, again, pieces, refusal, update


def restore(label: str, origin: pb.Origin | None = None) -> bytes:
    return bytes(pb.RestoreRequest(origin=origin, label=label).SerializeToString())


def assert_unknown(call: Callable[[], Any]) -> None:
    found = refusal(call)
    assert (found.code, found.error) == ("UNKNOWN", "OutcomeUnknownError"), found


def slowly(kind: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Have commands of a kind begin and wait; return what says so, and what lets them go on."""
    started, go_on = threading.Event(), threading.Event()
    handler = HANDLERS[kind]

    def waiting(*args: Any) -> Any:
        started.set()
        assert go_on.wait(PATIENCE_S)
        return handler(*args)

    monkeypatch.setitem(HANDLERS, kind, waiting)
    return started, go_on


@pytest.fixture
def checkpoint(served: Served, sender: Sender) -> str:
    with served.connect() as store:
        store.checkpoint("start")
    return "start"


# Attempts that meet


def test_attempt_joins_one_that_waits(served, wire, sender, ledger):
    origin = sender.origin()
    first, second = message(1, origin), message(1, again(origin))
    with served.held():
        calls = [wire.begin("Update", first), wire.begin("Update", second)]
        until(lambda: served.service.inflight.reserved_bytes == len(first) + len(second))
        assert served.worker.waiting_calls == 1
    replies = [call.result() for call in calls]
    assert replies[0] == replies[1]
    ledger.acknowledged[1] = command(replies[0])


def test_attempt_after_the_answer_is_answered_as_before(wire, sender, ledger):
    origin = sender.origin()
    reply = wire.unary("Update", message(1, origin))
    ledger.acknowledged[1] = command(reply)
    ledger.acknowledged[2] = command(wire.unary("Update", message(2, sender.origin())))
    assert wire.unary("Update", message(1, again(origin))) == reply
    assert command(wire.stream("Update", pieces(update(gradients(1), again(origin)), 99))) == 3


def test_refused_call_is_refused_again(wire, sender, ledger):
    origin = sender.origin()
    bad = {"rows": (np.array([1 << 20]), np.zeros((1, 4), np.float32))}
    attempts = [update(bad, o).joined() for o in (origin, again(origin))]
    found = [refusal(lambda a=a: wire.unary("Update", a)) for a in attempts]
    assert found[0] == found[1]
    assert found[0].error == "InvalidArgumentError"
    ledger.refused.add(1)


def test_call_cancelled_in_the_queue_leaves_no_trace(served, wire, sender, ledger):
    origin, lost = sender.origin(), sender.origin()
    with served.held():
        calls = [wire.begin("Update", message(1, origin)), wire.begin("Update", message(2, lost))]
        served.await_queue(2)
        for call in calls:
            call.cancel()
        served.await_queue(0)
        assert served.service.replay.remembered_calls == 0
        further = wire.begin("Update", message(1, again(origin)))
        served.await_queue(1)
    ledger.acknowledged[1] = command(further.result())
    ledger.refused.add(2)


def test_cancelled_attempt_leaves_the_one_that_joined(served, wire, sender, ledger):
    origin = sender.origin()
    first, second = message(1, origin), message(1, again(origin))
    with served.held():
        call, further = wire.begin("Update", first), wire.begin("Update", second)
        until(lambda: served.service.inflight.reserved_bytes == len(first) + len(second))
        call.cancel()
        until(lambda: served.service.inflight.reserved_bytes in (len(first), len(second)))
        assert served.worker.waiting_calls == 1
    ledger.acknowledged[1] = command(further.result())


@pytest.mark.parametrize("deadline_s", [None, 0.05], ids=["cancelled", "deadline"])
def test_call_that_ends_while_it_runs_is_remembered(
    deadline_s, served, wire, sender, ledger, monkeypatch
):
    started, go_on = slowly(commands.Update, monkeypatch)
    origin = sender.origin()
    while not started.is_set():  # the deadline may pass before
        chunks = update(gradients(1), origin).chunks()
        call = wire.begin_stream("Update", chunks, deadline_s or PATIENCE_S)
        until(lambda: started.is_set() or call.done())  # noqa: B023
    if deadline_s is None:
        call.cancel()
    until(lambda: served.service.inflight.reserved_bytes == 0)
    go_on.set()
    ledger.acknowledged[1] = command(wire.unary("Update", message(1, again(origin))))


def test_deadline_in_the_queue_leaves_no_trace(served, wire, sender, ledger):
    origin = sender.origin()
    with served.held():
        found = refusal(lambda: wire.unary("Update", message(1, origin), timeout=0.05))
        assert found.code == "DEADLINE_EXCEEDED"
        served.await_queue(0)
        assert served.service.replay.remembered_calls == 0
        further = wire.begin("Update", message(1, again(origin)))
        served.await_queue(1)
    ledger.acknowledged[1] = command(further.result())


def test_attempt_outlives_the_deadline_of_the_one_it_joined(served, wire, sender, ledger):
    origin = sender.origin()
    with served.held():
        first = wire.begin("Update", message(1, origin), timeout=5.0)
        served.await_queue(1)
        second = message(1, again(origin))
        further = wire.begin("Update", second)
        until(lambda: served.service.inflight.reserved_bytes > len(second))
        assert refusal(first.result).code == "DEADLINE_EXCEEDED"
        until(lambda: served.service.inflight.reserved_bytes == len(second))
    ledger.acknowledged[1] = command(further.result())


# Numbers


def test_number_means_one_verb(wire, sender, ledger):
    origin = sender.origin()
    ledger.acknowledged[1] = command(wire.unary("Update", message(1, origin)))
    grow = pb.GrowTableRequest(origin=again(origin), table="rows", rows=1 << 10)
    found = refusal(lambda: wire.unary("GrowTable", grow.SerializeToString()))
    assert found.error == "InvalidArgumentError"
    assert "Update" in found.text and "GrowTable" in found.text


@pytest.mark.parametrize(
    ("client_id", "sequence"), [("", 1), ("a" * 65, 1), ("a", 0)], ids=["none", "long", "zero"]
)
def test_origin_needs_a_client_and_a_number(client_id, sequence, wire, ledger):
    origin = pb.Origin(client_id=client_id, sequence=sequence)
    found = refusal(lambda: wire.unary("Update", message(1, origin)))
    assert found.error == "InvalidArgumentError"
    ledger.refused.add(1)


def test_number_that_the_client_has_done_with_is_not_run_again(wire, sender, ledger):
    origin = sender.origin()
    ledger.acknowledged[1] = command(wire.unary("Update", message(1, origin)))
    later = sender.origin(finished_below=2)
    ledger.acknowledged[2] = command(wire.unary("Update", message(2, later)))
    assert_unknown(lambda: wire.unary("Update", message(1, again(origin))))


def test_window_of_numbers_is_bounded(served, wire, sender, ledger):
    origins = [sender.origin() for _ in range(replay.CALLS_MAX + 1)]
    replies = []
    for n, origin in enumerate(origins):
        replies.append(wire.unary("Update", message(n, origin)))
        ledger.acknowledged[n] = command(replies[-1])
    assert served.service.replay.remembered_calls == replay.CALLS_MAX
    assert_unknown(lambda: wire.unary("Update", message(0, again(origins[0]))))
    for n in (1, replay.CALLS_MAX):
        assert wire.unary("Update", message(n, again(origins[n]))) == replies[n]


def test_checkpoint_is_answered_again_with_its_metadata(served, wire, sender):
    """Which its answer is kept without: the call has it."""

    def made(origin: pb.Origin) -> bytes:
        request = pb.CheckpointRequest(origin=origin, label="one", metadata_json='{"step": 17}')
        return bytes(wire.unary("Checkpoint", request.SerializeToString()))

    origin = sender.origin()
    first = made(origin)
    assert b'"step": 17' in first
    assert made(again(origin)) == first
    (client,) = served.service.replay._clients.values()
    (call,) = client.calls.values()
    assert call.outcome.result().value.metadata == {}


def test_numbers_may_come_in_any_order(wire, sender, ledger):
    origins = [sender.origin() for _ in range(8)]
    for n in reversed(range(8)):
        ledger.acknowledged[n] = command(wire.unary("Update", message(n, origins[n])))


# Clients


def test_forgotten_client_is_not_taken_for_a_new_one(served, wire, ledger, monkeypatch):
    monkeypatch.setattr(replay, "CLIENTS_MAX", 2)
    senders = [Sender(wire) for _ in range(3)]
    origins = [sender.origin() for sender in senders]
    for n, origin in enumerate(origins):
        ledger.acknowledged[n] = command(wire.unary("Update", message(n, origin)))
    assert served.service.replay.remembered_calls == 2
    assert_unknown(lambda: wire.unary("Update", message(0, again(origins[0]))))
    ledger.acknowledged[3] = command(wire.unary("Update", message(3, senders[0].origin())))
    assert_unknown(lambda: wire.unary("Update", message(0, again(origins[0]))))


def test_forgotten_client_that_is_back_has_no_old_call_run_again(served, wire, ledger, monkeypatch):
    """Its other thread came first, with a lower number that had not been sent before."""
    monkeypatch.setattr(replay, "CLIENTS_MAX", 2)
    sender = Sender(wire)
    late, done = sender.origin(), sender.origin()
    ledger.acknowledged[1] = command(wire.unary("Update", message(1, done)))
    for n in (2, 3):
        ledger.acknowledged[n] = command(wire.unary("Update", message(n, Sender(wire).origin())))
    ledger.acknowledged[4] = command(wire.unary("Update", message(4, late)))
    assert_unknown(lambda: wire.unary("Update", message(1, again(done))))


def test_client_whose_call_is_under_way_is_not_forgotten(served, wire, ledger, monkeypatch):
    monkeypatch.setattr(replay, "CLIENTS_MAX", 2)
    origins = [Sender(wire).origin() for _ in range(3)]
    with served.held():
        calls = [wire.begin("Update", message(0, origins[0]))]
        served.await_queue(1)
        calls += [wire.begin("Update", message(n, origins[n])) for n in (1, 2)]
        served.await_queue(3)
        joined = wire.begin("Update", message(0, again(origins[0])))
    ledger.acknowledged = {n: command(call.result()) for n, call in enumerate(calls)}
    assert command(joined.result()) == ledger.acknowledged[0]


# Another epoch, another life


def test_call_before_a_restore_is_not_run_after_it(served, wire, sender, ledger, checkpoint):
    done, lost = sender.origin(), sender.origin()
    wire.unary("Update", message(1, done))
    wire.unary("Restore", restore(checkpoint))
    assert_unknown(lambda: wire.unary("Update", message(1, again(done))))
    assert_unknown(lambda: wire.unary("Update", message(2, again(lost))))
    assert_unknown(lambda: wire.unary("Update", message(3, sender.origin())))
    sender.context.epoch += 1
    ledger.first_command += 2
    ledger.acknowledged[4] = command(wire.unary("Update", message(4, sender.origin())))


def test_restore_that_nobody_waited_for_is_one_all_the_same(
    served, wire, sender, ledger, checkpoint, monkeypatch
):
    started, go_on = slowly(commands.Restore, monkeypatch)
    origin = sender.origin()
    wire.unary("Update", message(1, origin))
    call = wire.begin("Restore", restore(checkpoint, Sender(wire).origin()))
    assert started.wait(PATIENCE_S)
    call.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        call.result()
    go_on.set()
    wire.unary("ListTables", b"")  # behind it in the queue
    assert_unknown(lambda: wire.unary("Update", message(1, again(origin))))
    ledger.first_command += 2


def test_restore_sent_again_is_answered_and_forgets_nothing(wire, sender, ledger, checkpoint):
    other = Sender(wire)
    restoring = other.origin()
    reply = wire.unary("Restore", restore(checkpoint, restoring))
    ledger.first_command += 1
    sender.context.epoch += 1
    origin = sender.origin()
    ledger.acknowledged[1] = command(wire.unary("Update", message(1, origin)))
    assert wire.unary("Restore", restore(checkpoint, again(restoring))) == reply
    wire.unary("Update", message(1, again(origin)))


def test_call_queued_behind_a_restore_is_of_another_epoch(served, wire, sender, ledger, checkpoint):
    origin, of_any = sender.origin(), sender.origin()
    of_any.epoch = 0
    with served.held():
        restoring = wire.begin("Restore", restore(checkpoint))
        served.await_queue(1)
        calls = [wire.begin("Update", message(n, o)) for n, o in ((1, origin), (2, of_any))]
        served.await_queue(3)
    restoring.result()
    assert_unknown(calls[0].result)
    assert_unknown(lambda: wire.unary("Update", message(1, again(origin))))
    ledger.first_command += 1
    ledger.acknowledged[2] = command(calls[1].result())
    assert wire.unary("Update", message(2, again(of_any))) == calls[1].result()


def test_call_before_a_restart_is_not_run_after_it(serve, served, wire, sender):
    done, lost = sender.origin(), sender.origin()
    ledger = Ledger({1: command(wire.unary("Update", message(1, done)))})
    served.stop()
    restarted = serve()
    with Wire(restarted.address) as later, restarted.connect() as store:
        assert_unknown(lambda: later.unary("Update", message(1, again(done))))
        assert_unknown(lambda: later.unary("Update", message(2, again(lost))))
        ledger.acknowledged[2] = command(later.unary("Update", message(2, sender.origin())))
        ledger.check(store)

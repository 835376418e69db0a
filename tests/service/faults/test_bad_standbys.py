"""Standbys that are slow or talk garbage, and leaders that do."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.config import Constant, Sgd
from embstore.storage import catalogue as catalogues
from embstore.storage.catalogue import Catalogue
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.replication import standbys
from tests.service.faults.following import await_role, await_same, connected, server
from tests.service.faults.ledger import gradients, make_tables
from tests.service.faults.served import Served, until
from tests.service.faults.wire import refusal

STORE = "0" * 32


def request(**what: Any) -> bytes:
    serialised: bytes = pb.FollowRequest(**what).SerializeToString()
    return serialised


ANEW, WANTED = request(follower=pb.Follower(anew=True)), request(wanted=pb.Wanted())


@pytest.fixture
def logged(quick_path: Path) -> Iterator[Served]:
    """A server with a command log."""
    options: Any = {"durability": "commands", "commit_every_s": 0.0}
    opening = lambda: embstore.open(quick_path / "s", cache_bytes=1 << 22, threads=1, **options)  # noqa: E731
    made = Served(quick_path / "s", opening, durability="commands")
    made.on_engine(make_tables)
    yield made
    made.stop()


@contextmanager
def stream(served: Served, *requests: bytes, ends: bool = False) -> Iterator[Any]:
    """Begin to follow a server, and send some requests; then end this side, or say nothing more."""
    over = threading.Event()

    def said() -> Iterator[bytes]:
        yield from requests
        if not ends:
            over.wait()

    with grpc.insecure_channel(served.address) as channel:
        call = channel.stream_stream(standbys.METHOD)(said())
        yield call
        over.set()
        call.cancel()


@pytest.mark.parametrize("last", [None, b"", b"\xff"], ids=["nothing", "empty", "noise"])
def test_a_standby_that_says_what_cannot_be_is_told_so(logged, last):
    """Also by ending its side: nobody knows any more what it has on its disk."""
    more = [] if last is None else [last]
    with stream(logged, ANEW, WANTED, *more, ends=last is None) as call:
        found = refusal(lambda: list(call))
    assert (found.code, found.error) == ("INVALID_ARGUMENT", "InvalidArgumentError")
    until(lambda: logged.service.replication.standbys == 0)


def test_a_standby_that_does_not_read_is_dropped(logged, monkeypatch):
    """The leader goes on, and keeps no more of its log than it would."""
    monkeypatch.setattr(standbys, "LAG_BYTES_MAX", 1 << 16)
    service = logged.service
    with stream(logged, ANEW, WANTED) as call, logged.connect() as store:
        until(lambda: service.replication.standbys == 1)
        wide = store.create_table(
            "wide", dim=1024, rows=1024, optimizer=Sgd(0.1), initializer=Constant(0.0)
        )
        keys, rows = np.arange(1024), np.ones((1024, 1024), np.float32)
        for n in range(100):
            wide.update(keys, rows)
            store.checkpoint(f"update-{n}")
            if service.replication.standbys_dropped:
                break
        until(lambda: service.replication.standbys == 0)
        with pytest.raises(grpc.RpcError) as refused:
            for _ in call:
                pass
        assert "too slow" in refused.value.details()
        store.checkpoint("last")
        assert len(logged.on_engine(lambda s: s.executor.log.files.segments.numbers)) == 1


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([b"garbage"], "expected a serialised embstore.v1.FollowRequest"),
        ([request()], "expected follower, found None"),
        ([request(durable=pb.LogPlace())], "expected follower"),
        ([ANEW, request(wanted=pb.Wanted(paths=["../secret"]))], "no file '../secret'"),
    ],
)
def test_garbage_of_a_standby_is_refused(logged, requests, text):
    with stream(logged, *requests) as call, pytest.raises(grpc.RpcError) as refused:
        list(call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in refused.value.details()


PROMOTION = {"id": "ab" * 16, "epoch": 1 << 20, "command": 1, "first_number": 9}
NO_PROMOTION = {"no id": {"id": ""}, "another id": {"id": "x" * 32}, "no epoch": {"epoch": 0}}


@pytest.mark.parametrize("change", NO_PROMOTION.values(), ids=NO_PROMOTION)
@pytest.mark.parametrize("count", [1, 2])
def test_no_malformed_promotion_replaces_a_server(logged, change, count):
    """A mutated message did: a promotion without an id, of epoch 0, ended all writes for good."""
    promotions = [pb.Promotion(**PROMOTION | change)] * count
    follower = pb.Follower(store_id=logged.service.store_id, promotions=promotions, fences=True)
    with stream(logged, request(follower=follower)) as call, pytest.raises(grpc.RpcError) as told:
        list(call)
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "expected promotions with ids" in told.value.details()
    with connected(logged) as store:
        store.table("marks").update([1], np.ones((1, 1), np.float32))


def test_a_server_without_a_command_log_cannot_be_followed(served):
    with (
        stream(served, request(follower=pb.Follower())) as call,
        pytest.raises(grpc.RpcError) as refused,
    ):
        next(call)
    assert "expected a leader with a command log" in refused.value.details()


def reply(**what: Any) -> bytes:
    serialised: bytes = pb.FollowReply(**what).SerializeToString()
    return serialised


def log_piece(piece: bytes, offset: int = 4096) -> bytes:
    return reply(log=pb.LogPiece(begin=pb.LogPlace(segment=1, offset=offset), piece=piece))


EMPTY = reply(leader=pb.Leader(store_id=STORE, catalogue=catalogues.encode(Catalogue(STORE))))
GARBAGE: dict[str, list[bytes]] = {
    "no message": [b"garbage"],
    "nothing": [],
    "an early log": [log_piece(b"")],
    "a catalogue": [reply(leader=pb.Leader(store_id=STORE, catalogue=b"garbage"))],
    "another store's catalogue": [
        reply(leader=pb.Leader(store_id="1" * 32, catalogue=catalogues.encode(Catalogue(STORE))))
    ],
    "a log": [EMPTY, log_piece(b"garbage" * 100)],
    "a log with a gap": [EMPTY, log_piece(b""), log_piece(b"x", 8192)],
    "a file that nobody wanted": [EMPTY, reply(file=pb.FilePiece(piece=b"x"))],
}


@contextmanager
def speaking(address: str, replies: list[bytes]) -> Iterator[list[int]]:
    """Serve a leader that sends these, whatever it is asked; yield how often it was asked."""
    asked: list[int] = []

    def follow(requests: Any, context: Any) -> Iterator[bytes]:
        asked.append(1)
        for sent in replies:
            next(requests)  # who follows; which files it wants; what it has
            yield sent

    leader = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    method = grpc.stream_stream_rpc_method_handler(follow)
    handler = grpc.method_handlers_generic_handler(standbys.SERVICE_NAME, {"Follow": method})
    leader.add_generic_rpc_handlers((handler,))
    assert leader.add_insecure_port(address)
    leader.start()
    try:
        yield asked
    finally:
        leader.stop(0).wait()


@pytest.mark.parametrize("replies", GARBAGE.values(), ids=GARBAGE)
def test_garbage_of_a_leader_does_no_harm(forks, quick_path, replies):
    """The standby asks again and again, until there is a leader that can be followed."""
    leader = server(forks, quick_path / "leader")
    standby = server(forks, quick_path / "standby", follow=leader.address)
    with speaking(leader.address, replies) as asked:
        standby.start()
        until(lambda: len(asked) >= 3)
    if replies[:1] == [EMPTY]:  # it has taken the commit of that store
        with connected(standby) as copy:
            assert copy.server_info().context.store_id == STORE
            assert await_role(copy, connected=False)["reason"]
        standby.kill()
        return
    leader.start()
    with connected(leader) as store:
        make_tables(store)
        store.update(gradients(1))
    await_same(leader, standby)
    standby.kill()
    leader.kill()


def test_a_directory_of_another_store_is_left_alone(forks, quick_path):
    leader = server(forks, quick_path / "leader")
    other = server(forks, quick_path / "other")
    for one in (leader, other):
        one.start()
        with connected(one) as store:
            make_tables(store)
            store.update(gradients(1))
    other.kill()
    standby = other.changed(follow=leader.address)
    standby.start()
    with connected(standby) as copy:
        check: Callable[[], Any] = lambda: copy.stats()["replication"]["reason"]  # noqa: E731
        assert "expected an empty directory, or a copy of store" in until(check)
        assert copy.command == 3
    standby.kill()
    leader.kill()

"""Rows of a hot replica, put into the tables of a session over gRPC: once, by members, in order."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExpiredError,
    TableHeldError,
)
from embstore_client import RemoteStore, connect
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from tests.reference import ReferenceStore
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import until
from tests.service.frequency_samples import DIM, PATIENCE_S, ROWS, Serving, add, called
from tests.service.plain import Payload
from tests.serving import Server


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(tmp_path / "store")


@pytest.fixture
def server(serving: Serving) -> Iterator[Server]:
    with serving() as server:
        for name in ("ads", "users"):
            add(server.store, name)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[RemoteStore]:
    with connect(server.address, timeout_s=PATIENCE_S) as client:
        yield client


@pytest.fixture
def stub(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        made: Callable[[Any], Any] = EmbstoreStub
        yield made(channel)


class Replica:
    """A member of a session with two tables, and the rows that it puts."""

    def __init__(self, client: RemoteStore, name: str = "ctr", shared: bool = False) -> None:
        client.sessions.open(name, ["ads", "users"], shared=shared)
        self.member = client.sessions.join(name, 0).member
        rng = np.random.default_rng(3)
        self.rows: dict[str, Any] = {
            table: (
                np.array(keys, np.int64),
                rng.standard_normal((len(keys), DIM), np.float32),
                rng.random((len(keys), 1), np.float32),
                add_t,
            )
            for table, keys, add_t in (("ads", [5, 1, 3999], 4), ("users", [], 2))
        }

    def put_to(self, reference: ReferenceStore) -> None:
        for name, rows in self.rows.items():
            reference.table(name).put_rows(*rows)


@pytest.fixture
def reference() -> ReferenceStore:
    reference = ReferenceStore()
    for name in ("ads", "users"):
        add(reference, name)
    return reference


def assert_equal(client: RemoteStore, reference: ReferenceStore) -> None:
    for name in reference.tables():
        expected = reference.table(name)
        assert (client.table(name).digest(), client.table(name).t) == (
            expected.digest(),
            expected.t,
        )


def test_replica_rows_of_several_tables_are_one_command(
    client: RemoteStore, reference: ReferenceStore
) -> None:
    replica = Replica(client)
    before = client.command
    done = client.sessions.put_rows(replica.member, replica.rows)
    assert (done.command, done.t) == (before + 1, {"ads": 4, "users": 2})
    replica.put_to(reference)
    assert_equal(client, reference)
    with pytest.raises(TableHeldError):
        client.table("ads").put_rows(*replica.rows["ads"])


@pytest.mark.parametrize("piece_bytes", [0, 7], ids=["unary", "pieces of 7"])
def test_replica_rows_sent_again_are_put_once(
    client: RemoteStore, stub: Any, reference: ReferenceStore, piece_bytes: int
) -> None:
    replica = Replica(client)
    payload = Payload(1)
    header = pb.PutStepRowsRequest.Header(member=replica.member)
    header.origin.CopyFrom(pb.Origin(client_id="plain", sequence=1))
    for name, (keys, weights, state, add_t) in replica.rows.items():
        header.tables.add(
            table=name,
            keys=payload.add(keys, "<i8"),
            weights=payload.add(weights, "<f4"),
            state=payload.add(state, "<f4"),
            add_t=add_t,
        )
    request = pb.PutStepRowsRequest(header=header, payload=payload.content)
    replies = [
        called(stub, "PutStepRows", request, pb.BulkAcknowledgedReply, piece_bytes).header
        for _ in range(3)
    ]
    assert len({reply.context.command for reply in replies}) == 1
    assert [dict(reply.t) for reply in replies] == [{"ads": 4, "users": 2}] * 3
    replica.put_to(reference)
    assert_equal(client, reference)


def test_replica_rows_are_put_once_however_often_connections_are_cut(
    server: Server, reference: ReferenceStore
) -> None:
    rng = np.random.default_rng(5)
    with (
        Proxy(server.address) as proxy,
        connect(proxy.address, timeout_s=PATIENCE_S) as client,
    ):
        replica = Replica(client)
        for _ in range(20):
            proxy.cut_after(int(rng.integers(1500)))
            client.sessions.put_rows(replica.member, replica.rows)
            replica.put_to(reference)
        assert_equal(client, reference)
        assert proxy.cuts >= 10


def test_replica_rows_that_a_restart_cut_off_are_told_to_be_in_doubt(
    serving: Serving, server: Server
) -> None:
    with (
        Proxy(server.address) as proxy,
        connect(proxy.address, timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        replica = Replica(client)
        begun, gate = threading.Event(), threading.Event()

        def hold(_: embstore.Store) -> None:
            begun.set()
            gate.wait(PATIENCE_S)

        holding = pool.submit(server.on_engine, hold)
        assert begun.wait(PATIENCE_S)
        with ThreadPoolExecutor(1) as other:
            putting = other.submit(client.sessions.put_rows, replica.member, replica.rows)
            assert until(lambda: server._worker.waiting_calls == 1)
            proxy.upstream = "127.0.0.1:1"  # nobody is there
            proxy.cut()
            gate.set()
            holding.result()
            server.stop()
            with serving() as restarted:
                proxy.upstream = restarted.address
                with pytest.raises(OutcomeUnknownError):
                    putting.result()
                assert restarted.store.table("ads").t in (0, 4)


def test_replica_rows_are_for_members_alone(client: RemoteStore) -> None:
    replica = Replica(client)
    with pytest.raises(SessionExpiredError):
        client.sessions.put_rows("0" * 32, replica.rows)
    client.sessions.close(replica.member)
    with pytest.raises(SessionExpiredError):
        client.sessions.put_rows(replica.member, replica.rows)
    assert client.table("ads").t == 0


def test_replica_rows_wait_for_no_step_but_are_refused(
    client: RemoteStore, reference: ReferenceStore
) -> None:
    replica = Replica(client)
    client.sessions.announce(replica.member, {1: {"ads": [1, 2]}})
    with pytest.raises(InvalidArgumentError, match="not finished"):
        client.sessions.put_rows(replica.member, replica.rows)
    client.sessions.lookup_step(replica.member, 1)
    client.sessions.release_step(replica.member, 1)
    client.sessions.put_rows(replica.member, replica.rows)
    replica.put_to(reference)
    client.sessions.announce(replica.member, {2: {"ads": [1, 2]}})
    rows = client.sessions.lookup_step(replica.member, 2)["ads"]
    assert rows.tobytes() == reference.table("ads").lookup([1, 2]).tobytes()


def test_replica_rows_of_a_shared_session_are_refused(client: RemoteStore) -> None:
    replica = Replica(client, shared=True)
    with pytest.raises(InvalidArgumentError, match="shared"):
        client.sessions.put_rows(replica.member, replica.rows)


ONE = np.ones((1, DIM), np.float32)
STATE = np.ones((1, 1), np.float32)
WRONG_PUTS: dict[str, Any] = {
    "no mapping": [("ads", [1])],
    "no name": {7: ([1], ONE, STATE, 1)},
    "three parts": {"ads": ([1], ONE, STATE)},
    "no parts": {"ads": 5},
    "another dim": {"ads": ([1], ONE[:, :2], STATE, 1)},
    "fewer rows than keys": {"ads": ([1, 2], ONE, STATE, 1)},
    "no state": {"ads": ([1], ONE, STATE[:, :0], 1)},
    "flat weights": {"ads": ([1], ONE[0], STATE, 1)},
    "a key beyond the table": {"ads": ([ROWS], ONE, STATE, 1)},
    "a negative key": {"ads": ([-1], ONE, STATE, 1)},
    "a negative add_t": {"ads": ([1], ONE, STATE, -1)},
    "an add_t that is none": {"ads": ([1], ONE, STATE, 1.5)},
    "an add_t beyond 64 bits": {"ads": ([1], ONE, STATE, 1 << 64)},
    "a table that is not the session's": {"items": ([1], ONE, STATE, 1)},
    "one good and one bad": {"ads": ([1], ONE, STATE, 1), "users": ([ROWS], ONE, STATE, 1)},
}


@pytest.mark.parametrize("puts", WRONG_PUTS.values(), ids=WRONG_PUTS)
def test_wrong_replica_rows_change_nothing(client: RemoteStore, puts: Any) -> None:
    replica = Replica(client)
    add(client, "items")
    before, digest = client.command, client.table("ads").digest()
    with pytest.raises(InvalidArgumentError):
        client.sessions.put_rows(replica.member, puts)
    assert (client.command, client.table("ads").digest()) == (before, digest)

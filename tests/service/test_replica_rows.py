"""Rows of a hot replica, put into the tables of a session over gRPC: once, or nobody knows."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import OutcomeUnknownError
from embstore.handles.store import Store
from embstore_client import connect
from embstore_proto.v1 import embstore_pb2 as pb
from tests.reference import ReferenceStore
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import until
from tests.service.frequency_samples import DIM, PATIENCE_S, Serving, add, called
from tests.service.plain import Payload
from tests.serving import Server


class Replica:
    """A member of a session with two tables, and the rows that it puts."""

    def __init__(self, client: Store) -> None:
        client.sessions.open("ctr", ["ads", "users"])
        self.member = client.sessions.join("ctr", 0).member
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


@pytest.mark.parametrize("piece_bytes", [0, 7], ids=["unary", "pieces of 7"])
def test_replica_rows_sent_again_are_put_once(client: Store, stub: Any, piece_bytes: int) -> None:
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
    for name, rows in replica.rows.items():
        expected = add(ReferenceStore(), name)
        expected.put_rows(*rows)
        assert client.table(name).digest() == expected.digest()


def test_replica_rows_that_a_restart_cut_off_are_told_to_be_in_doubt(
    serving: Serving, server: Server
) -> None:
    with (
        Proxy(server.address) as proxy,
        connect(proxy.address, timeout_s=PATIENCE_S, transport="grpc") as client,
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
            assert until(lambda: server.service.worker.waiting_calls == 1)
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

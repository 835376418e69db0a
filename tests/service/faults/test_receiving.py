"""Which messages are received, of whom, and how many at a time."""

import logging
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from embstore_client.grpc_wire import KEEPALIVE_MS
from embstore_proto.frame import HEADER_BYTES_MAX
from embstore_server.replication.standbys import METHOD as FOLLOW
from embstore_server.transports.grpc import health, port
from embstore_server.transports.grpc.receiving import CONTROL_MAX
from tests.service.access.tenants import serving, token_of
from tests.service.faults.http2 import Connection
from tests.service.faults.served import until
from tests.service.faults.wire import SERVICE, Wire
from tests.serving import Server

INVALID, PAST_DEADLINE, DENIED, UNAUTHENTICATED = "3", "4", "7", "16"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def answers(connection: Connection, count: int) -> dict[int, str]:
    """Return how the calls ended, once so many have."""

    def found() -> bool:
        connection.pump()
        return len(connection.answers) >= count

    until(found)
    return connection.answers


def token(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token_of(name)}"}


def test_arrays_are_not_read_of_who_may_use_them_nowhere(server):
    connection = Connection(server.address)
    for verb in ("Update", "UpdateStream", "ImportProfile"):
        connection.call(SERVICE + verb, b"", token("reader"))  # whose message never comes
    assert set(answers(connection, 3).values()) == {DENIED}
    connection.close()


def test_a_request_without_arrays_is_small(server):
    message = bytes(HEADER_BYTES_MAX + 1)
    connection = Connection(server.address)
    connection.call(
        f"{SERVICE}GetServerInfo",
        b"\0" + len(message).to_bytes(4, "big") + message,
        token("nothing"),
    )
    assert answers(connection, 1) == {1: INVALID}
    connection.close()


def test_few_requests_of_a_token_are_received_at_a_time(server):
    slow, quick = Connection(server.address), b"\0\0\0\0\0"
    for _ in range(CONTROL_MAX):
        slow.call(f"{SERVICE}ListTables", b"", token("reader"))
    slow.pump()
    receiving = server._server._calls._receiving
    until(lambda: [turns.inside for turns in receiving._queues.values()] == [CONTROL_MAX])
    other = Connection(server.address)
    other.call(f"{SERVICE}ListTables", quick, token("writer"))
    answers(other, 1)
    other.call(f"{SERVICE}ListTables", quick, token("reader"))
    other.pump()
    until(lambda: [turns.waiting for turns in receiving._queues.values()] == [1])
    slow.close()
    answers(other, 2)
    other.close()
    until(lambda: not receiving._queues)


def test_a_follower_without_a_token_leaves_no_line_in_the_log(server, caplog):
    connection = Connection(server.address)
    with caplog.at_level(logging.INFO):
        for name in ("", "reader"):
            connection.call(FOLLOW, b"", token(name) if name else {})
        assert answers(connection, 2) == {1: UNAUTHENTICATED, 3: DENIED}
        until(lambda: "audit" in caplog.messages)
        connection.close()
    (audited,) = (one for one in caplog.records if one.getMessage() == "audit")
    assert vars(audited)["embstore_fields"]["token"] == "reader"
    assert vars(audited)["embstore_limited_by"]


# Health


def unknown(wire: Wire) -> str:
    """Return how a check of a service that is not here is answered."""
    request = health_pb2.HealthCheckRequest(service="unknown")
    stub = health_pb2_grpc.HealthStub(wire._channel)
    try:
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(stub.Check(request).status))
    except grpc.RpcError as exc:
        return str(exc.code().name)  # type: ignore[attr-defined]


def test_health_awaits_few_requests_and_none_for_long(serve, monkeypatch):
    served = serve()
    answered = served._server._health
    connection = Connection(served.address)
    with Wire(served.address) as wire:
        assert unknown(wire) == "NOT_FOUND"
        for _ in range(health.READS_MAX):
            connection.call(CHECK, b"")
        connection.pump()
        until(lambda: answered._reads == health.READS_MAX)
        assert unknown(wire) == "SERVING"  # without having been read
        connection.close()
        until(lambda: answered._reads == 0)
        monkeypatch.setattr(answered, "_read_s", 0.01)
        late = Connection(served.address)
        late.call(CHECK, b"")
        assert answers(late, 1) == {1: PAST_DEADLINE}
        late.close()


def test_those_who_watch_health_are_counted(serve, monkeypatch):
    monkeypatch.setattr(health, "WATCHERS_MAX", 2)
    connection = Connection(serve().address)
    for _ in range(3):
        connection.call(WATCH, b"\0\0\0\0\0")
    assert answers(connection, 1) == {5: "8"}
    connection.close()


# Pings: who waits asks now and then whether the server is there, and is not cut off for it

_ENHANCE_YOUR_CALM = 11
_PINGS = 20


@pytest.mark.parametrize("apart_ms, reason", [(0, None), (3_600_000, _ENHANCE_YOUR_CALM)])
def test_who_asks_no_more_often_than_is_allowed_is_answered(apart_ms, reason, serve, monkeypatch):
    monkeypatch.setattr(port, "PINGS_APART_MS", apart_ms)
    connection = Connection(serve().address)
    connection.call(f"{SERVICE}ListTables", b"")  # whose request does not come to an end

    def is_answered(pings: int) -> bool:
        connection.pump()
        return connection.end is not None or connection.pings == pings

    for n in range(1, _PINGS + 1):
        connection.ping()
        until(lambda n=n: is_answered(n))
    connection.close()
    assert connection.end == reason


def test_the_client_library_asks_no_more_often():
    assert KEEPALIVE_MS >= 2 * port.PINGS_APART_MS  # a ping may be late, and the next one not

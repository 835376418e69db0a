"""A client that waits asks now and then whether the server is there, and is not cut off for it."""

from collections.abc import Callable

import pytest

from embstore_client.grpc_wire import KEEPALIVE_MS
from embstore_server import port
from tests.service.faults.http2 import Connection
from tests.service.faults.served import Served, until
from tests.service.faults.wire import SERVICE

_ENHANCE_YOUR_CALM = 11
_PINGS = 20


@pytest.mark.parametrize("apart_ms, reason", [(0, None), (3_600_000, _ENHANCE_YOUR_CALM)])
def test_who_asks_no_more_often_than_is_allowed_is_answered(
    apart_ms: int,
    reason: int | None,
    serve: Callable[..., Served],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_the_client_library_asks_no_more_often() -> None:
    assert KEEPALIVE_MS >= 2 * port.PINGS_APART_MS  # a ping may be late, and the next one not

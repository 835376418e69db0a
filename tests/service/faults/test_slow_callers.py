"""gRPC peers that send nothing, a byte at a time, or half of what they began ("slowloris"): others
are served meanwhile, and each connection is ended within the time that docs/guide/security.md
states, so that others get its place."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from embstore_client import connect
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.transports.grpc import port
from tests.service.faults.http2 import PREFACE, begun_call, frame
from tests.service.faults.ledger import gradients, make_tables
from tests.service.faults.served import PATIENCE_S, Served, until

SOON_S = 2.0
"""In place of each timeout, which is seconds to minutes."""
SETTINGS, HEADERS, CONTINUATION, PING, DATA = 4, 1, 9, 6, 0
END_HEADERS = 4
HALF_A_MESSAGE = b"\0" + (1000).to_bytes(4, "big") + b"x"
METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
METHODS += [
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/none/None",
]
SET_UP = PREFACE + frame(SETTINGS, 0, 0, b"")
BLOCK = begun_call("/embstore.v1.Embstore/Update")
WHOLE_HEAD = SET_UP + frame(HEADERS, END_HEADERS, 1, BLOCK)
UNFINISHED: dict[str, bytes] = {
    "nothing": b"",
    "half a preface": PREFACE[:9],
    "half of its settings": PREFACE + frame(SETTINGS, 0, 0, bytes(6))[:11],
    "no call": SET_UP,
    "half a ping": SET_UP + frame(PING, 0, 0, bytes(8))[:12],
    "half a frame of headers": SET_UP + frame(HEADERS, END_HEADERS, 1, BLOCK)[:30],
    "headers without an end": SET_UP + frame(HEADERS, 0, 1, BLOCK[:20]),
    "no message": WHOLE_HEAD,
    "half a frame of data": WHOLE_HEAD + frame(DATA, 0, 1, HALF_A_MESSAGE)[:12],
}


@pytest.fixture
def impatient(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server whose timeouts are over soon, with room for few connections."""
    monkeypatch.setattr(port, "_IDLE_MS", int(1000 * SOON_S))
    served = serve(
        handshake_timeout_s=SOON_S,
        call_timeout_s=SOON_S,
        call_timeout_max_s=PATIENCE_S,
        connections_max=len(UNFINISHED) + len(METHODS) + 2,
    )
    served.on_engine(make_tables)
    return served


@pytest.fixture
def peers(impatient: Served) -> Iterator[Callable[[bytes], socket.socket]]:
    """Return a function that connects, and sends some bytes."""
    host, _, number = impatient.address.rpartition(":")
    with ExitStack() as made:

        def peer(sent: bytes) -> socket.socket:
            one = made.enter_context(socket.create_connection((host, int(number))))
            one.sendall(sent)
            return one

        yield peer


def await_end(peer: socket.socket) -> None:
    """Wait until the server has ended a connection."""
    peer.settimeout(PATIENCE_S)
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionError:
        pass


def test_whatever_is_not_finished_is_ended_and_others_go_on(impatient, peers):
    with impatient.connect() as store:
        slow = [peers(sent) for sent in UNFINISHED.values()]
        slow += [
            peers(
                SET_UP
                + frame(HEADERS, END_HEADERS, 1, begun_call(method))
                + frame(DATA, 0, 1, HALF_A_MESSAGE)
            )
            for method in METHODS
        ]
        store.update(gradients(1))
        for one in slow:
            await_end(one)
        store.update(gradients(2))
    impatient.assert_free()


def test_a_byte_at_a_time_does_not_prolong_it(impatient, peers):
    """The time of a handshake counts from the connection on; a call's from its headers on."""
    over = Event()

    def dribble(peer: socket.socket, sent: bytes) -> None:
        try:
            for at in range(len(sent)):
                peer.sendall(sent[at : at + 1])
                over.wait(SOON_S / 4)
        except OSError:
            pass

    head = b"\0" + (100_000).to_bytes(4, "big")
    pieces = b"".join(frame(DATA, 0, 1, bytes(1)) for _ in range(1000))
    starts = {b"": PREFACE * 1000, WHOLE_HEAD + frame(DATA, 0, 1, head): pieces}
    slow = [(peers(start), then) for start, then in starts.items()]
    threads = [Thread(target=dribble, args=one) for one in slow]
    for thread in threads:
        thread.start()
    try:
        for peer, _ in slow:
            await_end(peer)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_full_port_has_room_again_when_the_slow_ones_were_ended(impatient, peers):
    with impatient.connect() as store:
        slow = [peers(SET_UP) for _ in range(2 * (len(UNFINISHED) + len(METHODS)))]
        store.update(gradients(1))

        def gets_in() -> bool:
            with connect(impatient.address, transport="grpc", timeout_s=PATIENCE_S) as other:
                return other.update(gradients(2)).command > 0

        assert until(gets_in)
        for one in slow:
            await_end(one)

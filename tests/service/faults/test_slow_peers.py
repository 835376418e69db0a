"""Peers that hold a call open: one that never reads its reply, one that never sends what it said.

Others go on meanwhile; what such a call holds is given back at its deadline, or when it is gone.
A deadline passes when the test says so.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest

from embstore.config import Constant, Sgd
from embstore.handles.store import Store
from embstore_proto import frame
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.served import PATIENCE_S, Served, on_loop_call, resident_bytes, until
from tests.service.faults.wire import Wire, lookup, refusal

ROWS, DIM = 20_000, 1024
REPLY_BYTES = 4 * DIM * 8000
FAR_S = 3600.0


@pytest.fixture
def wide(serve: Callable[..., Served]) -> Served:
    """A server of long rows."""
    served = serve(call_timeout_s=FAR_S, call_timeout_max_s=FAR_S, read_timeout_s=FAR_S / 2)
    served.on_engine(make_wide)
    return served


def make_wide(store: Store) -> None:
    """Make a table whose rows are long, and look some up, that what it takes is there."""
    store.create_table("wide", dim=DIM, rows=ROWS, optimizer=Sgd(1.0), initializer=Constant(1.0))
    store.table("wide").lookup(np.arange(8000))


@pytest.fixture
def wire(wide: Served) -> Iterator[Wire]:
    with Wire(wide.address) as made:
        yield made


def held(served: Served) -> int:
    return served.service.inflight.reserved_bytes


def assert_others_go_on(served: Served) -> None:
    with served.connect() as store:
        table = store.table("wide")
        assert table.update([1], np.ones((1, DIM), np.float32)).t == table.t
        assert table.lookup(np.arange(600)).shape == (600, DIM)


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Timeout]:
    """The deadlines of the server's calls, as they are set."""
    made: list[asyncio.Timeout] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> asyncio.Timeout:
        one = timeout(seconds)
        if seconds is None or seconds > 0.9 * FAR_S:
            made.append(one)
        return one

    monkeypatch.setattr(asyncio, "timeout", noted)
    return made


def let_pass(deadlines: list[asyncio.Timeout]) -> None:
    """Have the deadlines pass of all calls that have not ended."""

    def passed() -> None:
        while deadlines:
            with suppress(RuntimeError):  # its call has ended
                deadlines.pop().reschedule(0)

    on_loop_call(passed)


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages with rows that are sent. This list holds each once."""
    sent: list[bytes] = []
    make = frame._blank_bytes

    def watched(size: int) -> bytes:
        blank = make(size)
        if size > 1 << 20:
            sent.append(blank)
        return blank

    monkeypatch.setattr(frame, "_blank_bytes", watched)
    return sent


def test_reader_that_never_reads_is_cut_off(wide, wire, deadlines, replies):
    """Its status stays behind the chunk that it does not read; the rows do not."""
    call = wire.begin_stream("Lookup", lookup({"wide": np.arange(8000)}).chunks(), None)
    until(lambda: replies)
    assert_others_go_on(wide)
    let_pass(deadlines)
    wide.assert_free()
    until(lambda: sys.getrefcount(replies[0]) == 2)  # the list, and the call itself
    assert refusal(lambda: list(call)).code == "DEADLINE_EXCEEDED"
    wide.assert_idle()


def test_reader_that_never_reads_one_chunk_is_cut_off(wide, wire, deadlines):
    """It has a megabyte at most: that much is on its way before anybody waits."""
    message = lookup({"wide": np.arange(200)})
    calls = [wire.begin_stream("Lookup", message.chunks(), None) for _ in range(20)]
    until(lambda: len(deadlines) == 20)
    assert_others_go_on(wide)
    let_pass(deadlines)
    wide.assert_free()
    for call in calls:
        try:
            assert len(b"".join(call)) > 200 * 4 * DIM
        except grpc.RpcError as exc:
            assert exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    wide.assert_idle()


def test_reader_that_never_reads_is_cut_off_long_before_its_deadline(serve):
    served = serve(call_timeout_s=FAR_S, call_timeout_max_s=FAR_S, read_timeout_s=0.2)
    served.on_engine(make_wide)
    with Wire(served.address) as wire:
        call = wire.begin_stream("Lookup", lookup({"wide": np.arange(8000)}).chunks(), None)
        until(lambda: held(served) > REPLY_BYTES)
        served.assert_free()  # its status is behind the chunk that it does not read
        assert "read_timeout_s" in refusal(lambda: list(call)).text


def test_replies_that_nobody_reads_are_bounded(serve):
    """Thirty of them held 2 GB where 128 MiB were allowed: others are refused before their work."""
    bound = 4 * REPLY_BYTES
    served = serve(
        call_timeout_s=FAR_S,
        call_timeout_max_s=FAR_S,
        read_timeout_s=FAR_S,
        inflight_bytes_max=bound,
    )
    served.on_engine(make_wide)
    resident = resident_bytes()
    with Wire(served.address) as wire:
        message = lookup({"wide": np.arange(8000)})
        calls = [wire.begin_stream("Lookup", message.chunks(), None) for _ in range(30)]
        until(lambda: served.answered("LookupStream", "UNAVAILABLE") >= 26)
        assert held(served) <= bound
        assert resident_bytes() - resident < 2 * bound
        with served.connect() as store:
            assert store.table("wide").update([1], np.ones((1, DIM), np.float32)).t == 1
        for call in calls:
            call.cancel()
    served.assert_idle()


def test_reader_that_goes_away_is_let_go(wide, wire):
    call = wire.begin_stream("Lookup", lookup({"wide": np.arange(8000)}).chunks())
    until(lambda: held(wide) > REPLY_BYTES)
    call.cancel()
    wide.assert_idle()
    assert wide.answered("LookupStream", "CANCELLED") == 1


class Announcer:
    """Announces a gigabyte and sends a kilobyte of it."""

    def __init__(self, wire: Wire) -> None:
        self._over = threading.Event()
        self.call: Any = wire.begin_stream("Update", self._chunks(), None)

    def _chunks(self) -> Iterator[bytes]:
        yield pb.Chunk(total_bytes=1 << 30, piece=bytes(1 << 10)).SerializeToString()
        self._over.wait(PATIENCE_S)

    def end(self) -> None:
        """Let the sending thread go."""
        self._over.set()


def test_sender_that_stops_is_cut_off(wide, wire, deadlines):
    """What they announced was held: four of them, and everybody else was refused."""
    resident = resident_bytes()
    senders = [Announcer(wire) for _ in range(8)]
    until(lambda: 8 << 10 <= held(wide) < 9 << 10)
    assert resident_bytes() - resident < 256 << 20, "memory is taken where bytes come"
    assert_others_go_on(wide)
    let_pass(deadlines)
    wide.assert_idle()
    for sender in senders:
        assert refusal(lambda s=sender: list(s.call)).code == "DEADLINE_EXCEEDED"
        sender.end()


def test_sender_that_goes_away_is_let_go(wide, wire):
    with Wire(wide.address) as other:
        senders = [Announcer(other) for _ in range(3)]
        until(lambda: held(wide) >= 3 << 10)
    wide.assert_idle()
    for sender in senders:
        sender.end()

"""A call that has ended holds no arrays, however it ended, and whether or not it is remembered.

Nothing may be left to the cyclic garbage collector: it comes when there are many objects, and a few
of these have a gigabyte. So it is off here, and every received message is watched.
"""

import gc
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest

from embstore.config import Constant, Sgd
from embstore_proto.received import Assembly
from embstore_server.transports.grpc import rpc
from tests.service.faults.served import Served, until
from tests.service.faults.wire import Sender, Wire, lookup, refusal, update

ROUNDS = 12
KEYS, DIM = 1 << 14, 16
GRADIENTS = np.zeros((KEYS, DIM), np.float32)  # a megabyte


class Watched(Assembly):
    """Keeps an eye on the memory of each message."""

    messages: ClassVar[list[weakref.ref[Any]]] = []

    def add(self, chunk: bytes) -> None:
        begins = self._buffer is None
        super().add(chunk)
        if begins:
            self.messages.append(weakref.ref(self._buffer))


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    monkeypatch.setattr(rpc, "Assembly", Watched)
    gc.collect()
    gc.disable()
    Watched.messages.clear()
    yield Watched.messages
    gc.enable()


@pytest.fixture
def wide(served: Served) -> str:
    """A table that the gradients fit."""
    served.on_engine(
        lambda store: store.create_table(
            "wide", dim=DIM, rows=KEYS, optimizer=Sgd(0.1), initializer=Constant(0.0)
        )
    )
    return "wide"


def written(wire: Wire, table: str) -> list[bytes]:
    keys = np.arange(KEYS) % 64
    return list(update({table: (keys, GRADIENTS)}, Sender(wire).origin()).chunks())


def answer(wire: Wire, table: str, messages: list[Any]) -> None:
    wire.stream("Update", written(wire, table))


def read(wire: Wire, table: str, messages: list[Any]) -> None:
    wire.stream("Lookup", list(lookup({table: np.arange(KEYS)}).chunks()))


def refuse(wire: Wire, table: str, messages: list[Any]) -> None:
    found = refusal(lambda: wire.stream("Update", written(wire, "rows")))  # another dim
    assert found.error == "InvalidArgumentError"


def cut(wire: Wire, table: str, messages: list[Any]) -> None:
    found = refusal(lambda: wire.stream("Update", written(wire, table)[:1]))
    assert found.error == "InvalidArgumentError"


def cancel(wire: Wire, table: str, messages: list[Any]) -> None:
    before = len(messages)
    call = wire.begin_stream("Update", written(wire, table))
    until(lambda: len(messages) > before)
    call.cancel()


def time_out(wire: Wire, table: str, messages: list[Any]) -> None:
    try:
        wire.stream("Update", written(wire, table), timeout=0.004)
    except grpc.RpcError as exc:
        assert exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", [answer, read, refuse, cut, cancel, time_out])
def test_ended_call_holds_no_arrays(end, served, wire, wide, messages):
    for _ in range(ROUNDS):
        end(wire, wide, messages)
    served.assert_idle()
    assert len(messages) == ROUNDS or end is time_out
    until(lambda: not any(message() is not None for message in messages))

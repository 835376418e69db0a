"""A thousand calls that end badly: cancelled, timed out, cut off, sent again. Nothing half applied.

Each round picks one way by chance. Whatever a client was not told is found out in the end, from the
store itself (`ledger`); and when all is over the server holds nothing more than before.
"""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.ledger import MARKS, ROWS, Ledger, gradients
from tests.service.faults.served import PATIENCE_S, Served, resident_bytes, sockets, until
from tests.service.faults.wire import Sender, Wire, acknowledged, again, lookup, pieces, update

SEED = 20_261_122
ROUNDS, WARM_UP = 800, 100
LONGEST_S = 0.003
"""Of what is waited before a call is cancelled, and of deadlines: calls take about as long."""
GROWTH_BYTES = 24 << 20
"""Above what a leak of one message a round would be, if messages were of their usual size."""


class Rounds:
    """The ways to end a call. Each takes the number of an update and says what became of it."""

    def __init__(self, served: Served, wire: Wire, ledger: Ledger, rng: np.random.Generator):
        self._served, self._wire, self._ledger, self._rng = served, wire, ledger, rng
        self._sender = Sender(wire)
        self.ways = [
            self.done,
            self.sent_twice,
            self.cancelled,
            self.timed_out,
            self.stream_cancelled,
            self.stream_timed_out,
            self.stream_cut_off,
            self.cancelled_in_the_queue,
            self.lookup_cancelled,
        ]

    def run(self, n: int) -> None:
        """Do one round with update n."""
        self.ways[int(self._rng.integers(len(self.ways)))](n)

    def _origin(self) -> pb.Origin:
        origin = self._sender.origin()
        origin.finished_below = max(1, origin.sequence - 50)
        return origin

    def _moment(self) -> float:
        return float(self._rng.random() ** 2) * LONGEST_S

    def _pieces(self, n: int, origin: pb.Origin) -> list[bytes]:
        return pieces(update(gradients(n), origin), int(self._rng.integers(40, 400)))

    def _ended(self, n: int, origin: pb.Origin, call: Any) -> None:
        """Take the outcome of a call; where there is none, send it again, or leave it so."""
        try:
            reply = call()
        except (grpc.RpcError, grpc.FutureCancelledError):
            if self._rng.random() < 0.5:
                self._ledger.unknown.add(n)
                return
            reply = self._wire.unary("Update", update(gradients(n), again(origin)).joined())
        self._ledger.acknowledged[n] = acknowledged(reply).context.command

    def done(self, n: int) -> None:
        origin = self._origin()
        self._ended(n, origin, lambda: self._wire.stream("Update", self._pieces(n, origin)))

    def sent_twice(self, n: int) -> None:
        origin = self._origin()
        messages = [update(gradients(n), o).joined() for o in (origin, again(origin))]
        replies = [c.result() for c in [self._wire.begin("Update", m) for m in messages]]
        assert replies[0] == replies[1]
        self._ended(n, origin, lambda: replies[0])

    def cancelled(self, n: int) -> None:
        origin = self._origin()
        call = self._wire.begin("Update", update(gradients(n), origin).joined())
        self._cancel(call)
        self._ended(n, origin, call.result)

    def _cancel(self, call: Any) -> None:
        """Cancel a call after a while, if it has not ended by then."""
        try:
            call.exception(timeout=self._moment())
        except grpc.FutureTimeoutError:
            call.cancel()
        except grpc.FutureCancelledError:
            raise AssertionError("nobody else cancels") from None

    def timed_out(self, n: int) -> None:
        origin = self._origin()
        message = update(gradients(n), origin)
        self._ended(n, origin, lambda: self._wire.unary("Update", message.joined(), self._moment()))

    def stream_cancelled(self, n: int) -> None:
        origin = self._origin()
        call = self._wire.begin_stream("Update", self._pieces(n, origin))
        self._cancel(call)
        self._ended(n, origin, lambda: _joined(call))

    def stream_timed_out(self, n: int) -> None:
        origin = self._origin()
        chunks = self._pieces(n, origin)
        self._ended(n, origin, lambda: self._wire.stream("Update", chunks, self._moment()))

    def stream_cut_off(self, n: int) -> None:
        chunks = self._pieces(n, self._origin())
        sent = int(self._rng.integers(len(chunks)))
        goes_on, cancelled = self._rng.random() < 0.5, threading.Event()

        def broken() -> Iterator[bytes]:
            yield from chunks[:sent]
            if goes_on:
                cancelled.wait(PATIENCE_S)

        call = self._wire.begin_stream("Update", broken())
        if goes_on:
            self._cancel(call)
            cancelled.set()
        with pytest.raises(grpc.RpcError):
            list(call)
        self._ledger.refused.add(n)

    def cancelled_in_the_queue(self, n: int) -> None:
        self._wire.unary("GetServerInfo", b"")  # calls that were cancelled before have arrived
        self._served.assert_idle()  # and ended: the one in the queue is this one
        with self._served.held():
            call = self._wire.begin("Update", update(gradients(n), self._origin()).joined())
            self._served.await_queue(1)
            call.cancel()
            self._served.await_queue(0)
        self._ledger.refused.add(n)

    def lookup_cancelled(self, n: int) -> None:
        message = lookup({"rows": np.arange(ROWS), "marks": np.arange(MARKS)})
        self._cancel(self._wire.begin_stream("Lookup", message.chunks()))
        self._cancel(self._wire.begin("Lookup", message.joined()))


def _joined(call: Any) -> bytes:
    """Return the message of a short reply, which one chunk holds."""
    return b"".join(pb.Chunk.FromString(chunk).piece for chunk in call)


def test_nothing_is_half_applied_and_nothing_is_left(served, wire, ledger, caplog):
    sys.stdout.write(f"seed {SEED}\n")
    rounds = Rounds(served, wire, ledger, np.random.default_rng(SEED))
    for n in range(WARM_UP):
        rounds.run(n)
    served.assert_idle()
    open_before, resident = sockets(), resident_bytes()
    for n in range(WARM_UP, WARM_UP + ROUNDS):
        rounds.run(n)
    served.assert_idle()
    assert served.service.replay.remembered_calls <= 51
    until(lambda: sockets() <= open_before)
    assert resident_bytes() - resident < GROWTH_BYTES
    # gRPC itself logs a call that its client cancels while the answer leaves.
    ours = [r for r in caplog.records if r.name.startswith("embstore")]
    assert not [r.getMessage() for r in ours if r.levelname == "ERROR"]
    kinds = (ledger.acknowledged, ledger.refused, ledger.unknown)
    assert all(len(kind) > ROUNDS // 50 for kind in kinds), "every kind of end was met"

"""Streams whose pieces do not add up: nothing is applied, and the refusal says what is wrong."""

from collections.abc import Callable, Iterator

import pytest

from embstore_proto import frame
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.ledger import Ledger, gradients
from tests.service.faults.served import Served
from tests.service.faults.wire import Sender, Wire, acknowledged, pieces, refusal, update

SIZE = 64


def chunk(**fields: object) -> bytes:
    return pb.Chunk(**fields).SerializeToString()


def _total(whole: bytes, total: int) -> list[bytes]:
    return [chunk(total_bytes=total, piece=whole[:SIZE]), chunk(piece=whole[SIZE:])]


BAD: dict[str, Callable[[bytes], list[bytes]]] = {
    "nothing": lambda whole: [],
    "more than announced": lambda whole: _total(whole, len(whole) - 1),
    "fewer than announced": lambda whole: _total(whole, len(whole) + 1),
    "far too many announced": lambda whole: _total(whole, (1 << 64) - 1),
    "one above the limit": lambda whole: _total(whole, (1 << 30) + (1 << 20) + 1),
    "no message": lambda whole: [b"\xff" * 20],
    "pieces in another order": lambda whole: (
        pieces(frame.Framed([whole], len(whole)), SIZE)[:1]
        + pieces(frame.Framed([whole], len(whole)), SIZE)[:0:-1]
    ),
}
"""What else is refused of chunks `test_frame.py` asks."""


@pytest.mark.parametrize("cut", BAD.values(), ids=BAD.keys())
def test_stream_in_a_wrong_order_applies_nothing(
    cut: Callable[[bytes], list[bytes]], wire: Wire, sender: Sender, ledger: Ledger
) -> None:
    whole = update(gradients(1), sender.origin()).joined()
    found = refusal(lambda: wire.stream("Update", cut(whole)))
    assert (found.code, found.error) == ("INVALID_ARGUMENT", "InvalidArgumentError"), found
    ledger.refused.add(1)
    ledger.acknowledged[2] = _command(wire.stream("Update", pieces(update(gradients(2)), SIZE)))


def _command(reply: memoryview) -> int:
    return int(acknowledged(reply).context.command)


def test_pieces_may_have_any_size(wire: Wire, sender: Sender, ledger: Ledger) -> None:
    for n, size in enumerate((1, 3, 64, 65, 1 << 20)):
        message = update(gradients(n), sender.origin())
        ledger.acknowledged[n] = _command(wire.stream("Update", pieces(message, size)))


def test_piece_above_the_limit_of_a_message_is_refused(
    served: Served, wire: Wire, ledger: Ledger
) -> None:
    size = 5 * served.service.settings.unary_bytes_max
    found = refusal(lambda: wire.stream("Update", [chunk(total_bytes=size, piece=bytes(size))]))
    assert found.code == "RESOURCE_EXHAUSTED", found
    ledger.refused.add(1)


def test_sender_that_breaks_off_applies_nothing(
    served: Served, wire: Wire, sender: Sender, ledger: Ledger
) -> None:
    def breaking() -> Iterator[bytes]:
        yield from pieces(update(gradients(1), sender.origin()), SIZE)[:2]
        raise ConnectionError("the trainer died")

    call = wire.begin_stream("Update", breaking())
    found = refusal(lambda: list(call))
    assert found.code in ("UNKNOWN", "CANCELLED")
    ledger.refused.add(1)

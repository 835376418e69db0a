"""Arrays that are not where, or what, a message says: every array of every bulk verb, every way.

A place is dtype, shape and offset, which whoever sends a message chooses freely.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from embstore_proto.frame import Message
from embstore_proto.v1 import embstore_pb2 as pb
from tests.service.faults.ledger import DIM, gradients
from tests.service.faults.wire import acknowledged, pieces, refusal

KEYS = 4
Make = Callable[[Message], Any]


def keys(message: Message, table: str = "rows", *, counts: bool = False) -> pb.TableKeys:
    counted = message.add(np.ones(KEYS, np.uint32)) if counts else None
    return pb.TableKeys(table=table, keys=message.add(np.arange(KEYS)), counts=counted)


def rows(message: Message, count: int = KEYS, width: int = DIM) -> pb.Array:
    return message.add(np.ones((count, width), np.float32))


def shares(message: Message) -> pb.TableGradients:
    place = message.add(np.arange(KEYS))
    return pb.TableGradients(table="rows", keys=place, gradients=rows(message))


def bags(message: Message) -> pb.Bags:
    weights = message.add(np.ones(KEYS, np.float32))
    return pb.Bags(offsets=message.add(np.array([0, 2, KEYS])), weights=weights)


def pooled_keys(message: Message) -> pb.PooledKeys:
    return pb.PooledKeys(table="rows", keys=message.add(np.arange(KEYS)), bags=bags(message))


def pooled_shares(message: Message) -> pb.PooledGradients:
    place, of_bags = message.add(np.arange(KEYS)), rows(message, 2)
    return pb.PooledGradients(table="rows", keys=place, gradients=of_bags, bags=bags(message))


def state(message: Message) -> pb.Array:
    return message.add(np.ones((KEYS, 2 * DIM), np.float32))  # Adam's


def _ranks(message: Message) -> list[pb.UpdateRanksRequest.Rank]:
    return [pb.UpdateRanksRequest.Rank(tables=[shares(message)]) for _ in range(2)]


VERBS: dict[str, Make] = {
    "Lookup": lambda m: pb.LookupRequest.Header(tables=[keys(m, counts=True)]),
    "LookupPooled": lambda m: pb.LookupPooledRequest.Header(tables=[pooled_keys(m)]),
    "ReadRows": lambda m: pb.ReadRowsRequest.Header(keys=keys(m)),
    "Update": lambda m: pb.UpdateRequest.Header(tables=[shares(m)]),
    "UpdatePooled": lambda m: pb.UpdatePooledRequest.Header(tables=[pooled_shares(m)]),
    "UpdateRanks": lambda m: pb.UpdateRanksRequest.Header(ranks=_ranks(m)),
    "Assign": lambda m: pb.AssignRequest.Header(keys=keys(m), rows=rows(m)),
    "PutRows": lambda m: pb.PutRowsRequest.Header(keys=keys(m), weights=rows(m), state=state(m)),
    "DeleteRows": lambda m: pb.DeleteRowsRequest.Header(keys=keys(m)),
}
WRITES = ("Update", "UpdatePooled", "UpdateRanks", "Assign", "PutRows", "DeleteRows")

TOP = (1 << 64) - 1


def _shaped(place: pb.Array, *shape: int) -> None:
    place.shape[:] = shape


def _of(place: pb.Array, first: int) -> None:
    _shaped(place, first, *place.shape[1:])


BAD: dict[str, Callable[[pb.Array], Any]] = {
    "after the end": lambda p: setattr(p, "offset", 1 << 20),
    "offset near 2**64": lambda p: setattr(p, "offset", TOP - 7),
    "offset and size over 2**64": lambda p: setattr(p, "offset", TOP - 4 * DIM),
    "one row too long": lambda p: _of(p, 1 << 12),
    "length near 2**64": lambda p: _of(p, TOP),
    "bytes over 2**64": lambda p: _of(p, 1 << 61),
    "product over 2**64": lambda p: _shaped(p, 1 << 32, 1 << 32),
    "product is 0 modulo 2**64": lambda p: _shaped(p, 1 << 63, 2),
    "nothing by a huge length": lambda p: _shaped(p, 0, TOP),
    "no dimension": lambda p: _shaped(p),
    "three dimensions": lambda p: _shaped(p, 1, 1, 1),
    "many dimensions": lambda p: _shaped(p, *[1] * 1000),
    "another number of dimensions": lambda p: _shaped(p, *([*p.shape, 1] * 2)[: 3 - len(p.shape)]),
    "no dtype": lambda p: setattr(p, "dtype", pb.DTYPE_UNSPECIFIED),
    "another dtype": lambda p: setattr(p, "dtype", p.dtype % 3 + 1),
    "unknown dtype": lambda p: setattr(p, "dtype", 99),
    "negative dtype": lambda p: setattr(p, "dtype", -1),
    "absent": lambda p: p.Clear(),
}


def places(header: Any) -> Iterator[pb.Array]:
    """Yield every array of a header, in it."""
    for field, value in header.ListFields():
        if field.message_type is None:
            continue
        for part in value if field.is_repeated else [value]:
            if isinstance(part, pb.Array):
                yield part
            else:
                yield from places(part)


def spoiled(make: Make) -> Iterator[tuple[str, bytes]]:
    """Yield every message of a verb with one bad place."""
    for name, spoil in BAD.items():
        for n in range(sum(1 for _ in places(make(Message())))):
            message = Message()
            header = make(message)
            spoil(list(places(header))[n])
            yield f"array {n}: {name}", message.framed(header.SerializeToString()).joined()


@pytest.mark.parametrize("verb", VERBS)
def test_bad_place_is_refused_and_changes_nothing(verb, served, wire, ledger):
    before = served.store.command
    for what, message in spoiled(VERBS[verb]):
        found = refusal(lambda m=message: wire.unary(verb, m))
        assert (found.code, found.error) == ("INVALID_ARGUMENT", "InvalidArgumentError"), what
        assert found.text, what
        assert served.store.command == before, what


@pytest.mark.parametrize("verb", VERBS)
def test_good_places_are_taken(verb, served, wire):
    """What the other tests spoil is right before."""
    message = Message()
    framed = message.framed(VERBS[verb](message).SerializeToString())
    before = served.store.command
    wire.unary(verb, framed.joined())
    wire.stream(verb, pieces(framed, 50))
    assert served.store.command == before + (2 if verb in WRITES else 0)


def test_negative_enums_are_refused(wire, ledger):
    for number in (-1, 7, -(1 << 31)):
        message = Message()
        pooled = VERBS["LookupPooled"](message)
        pooled.tables[0].bags.mode = number
        written = VERBS["Update"](Message())
        written.options.on_nonfinite = number
        config = pb.TableConfig(name="x", dim=1, rows=1, sgd=pb.Sgd(), constant=pb.Constant())
        config.key_space = number
        requests = {
            "LookupPooled": message.framed(pooled.SerializeToString()).joined(),
            "Update": _beside(VERBS["Update"], written),
            "CreateTable": pb.CreateTableRequest(config=config).SerializeToString(),
        }
        for name, request in requests.items():
            found = refusal(lambda n=name, r=request: wire.unary(n, r))
            assert found.error == "InvalidArgumentError", (name, number)
            assert str(number) in found.text


def _beside(make: Make, header: Any) -> bytes:
    message = Message()
    make(message)
    return message.framed(header.SerializeToString()).joined()


def test_arrays_may_lie_over_each_other(wire, sender, ledger):
    """Two tables may name the same keys, and no array is written to: each is what it says."""
    message = Message()
    once = message.add(np.array([1]))
    ones = message.add(np.ones((1, 1), np.float32))
    header = pb.UpdateRequest.Header(origin=sender.origin())
    header.tables.add(table="marks", keys=once, gradients=ones)
    keys, rows = gradients(1)["rows"]
    header.tables.add(table="rows", keys=message.add(keys), gradients=message.add(rows))
    inside = message.add(np.array([9, 1, 9]))  # the same key again, in the middle of others
    header.tables[0].keys.offset = inside.offset + 8
    reply = wire.unary("Update", message.framed(header.SerializeToString()).joined())
    ledger.acknowledged[1] = acknowledged(reply).context.command

"""Profiles and hot sets as documents: by generated code, and what they take of a server in flight.

What files are refused, and what reading them takes, `tests/unit/test_archive.py` asks.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import InvalidArgumentError, OverloadedError
from embstore.profiles.profile import Profile
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.path.inflight import Inflight
from tests.service.faults.wire import refusal
from tests.service.frequency_samples import (
    ROWS,
    Serving,
    add,
    called,
    counts_of,
    document,
    falling,
    hot_set_of,
    profile_of,
)
from tests.service.plain import Payload, array_of
from tests.serving import Server, on_loop, patient

MIB = 1 << 20
BOUND = 16 * MIB
GARBAGE = bytes(MIB)
"""No document, which is found when it is parsed."""


@pytest.fixture
def server(serving: Serving) -> Iterator[Server]:
    with serving({"inflight_bytes_max": BOUND}) as server:
        add(server.store, "ads")
        yield server


# By generated code

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "ImportProfile": ("profile", pb.ProfileImportedReply),
    "PinHotSet": ("hot_set", pb.HotSetPinnedReply),
}
"""The field and the reply of each verb that brings one."""


def sent(stub: Any, verb: str, content: bytes, piece_bytes: int = 0) -> Any:
    """Send a document, unary or in pieces; return the header of the reply."""
    field, reply = DOCUMENTS[verb]
    payload = Payload(3)
    place = payload.add(np.frombuffer(content, "u1"), "u1")
    kind: Any = getattr(pb, f"{verb}Request")
    request = kind(header=kind.Header(**{field: place}), payload=payload.content)
    return called(stub, verb, request, reply, piece_bytes).header


PIECES = pytest.mark.parametrize(
    "piece_bytes", [0, 7, 1 << 20], ids=["unary", "pieces of 7", "one piece"]
)


@PIECES
def test_plain_stub_moves_a_profile_both_ways(stub, client, piece_bytes):
    client.lookup({"ads": [1, 2, 2, 7]})
    request = pb.ExportProfileRequest(source=pb.PROFILE_SOURCE_COUNTED)
    reply = document(stub.ExportProfile(request), pb.ProfileReply)
    assert reply.header.context.store_id == client.store_id
    content = array_of(reply, reply.header.profile).tobytes()
    assert counts_of(Profile.from_bytes(content), "ads") == {1: 1, 2: 2, 7: 1}
    assert sent(stub, "ImportProfile", content, piece_bytes).context.command == client.command
    assert counts_of(client.export_profile(source="imported"), "ads") == {1: 1, 2: 2, 7: 1}


@PIECES
def test_plain_stub_pins_a_hot_set(stub, piece_bytes):
    none = document(stub.GetHotSet(pb.GetHotSetRequest()), pb.HotSetReply)
    assert not none.header.HasField("hot_set")
    content = hot_set_of(2, ads=[1, 2]).to_bytes()
    pinned = sent(stub, "PinHotSet", content, piece_bytes).hot_set
    assert (pinned.version, pinned.pinned_rows) == (2, 2)
    back = document(stub.GetHotSet(pb.GetHotSetRequest()), pb.HotSetReply)
    assert array_of(back, back.header.hot_set).tobytes() == content
    assert stub.UnpinHotSet(pb.UnpinHotSetRequest()).hot_set.version == 0


# Bytes in flight


def test_documents_above_the_limit_are_refused_by_its_name(serving):
    limits = Limits(call_bytes_max=20_000)
    with serving(limits=limits) as server, patient(server.address) as client:
        add(client, "ads")
        wide = profile_of({"ads": dict.fromkeys(range(ROWS), 1 << 40)})
        with pytest.raises(InvalidArgumentError, match=r"limits\.call_bytes_max"):
            client.import_profile(wide)
        client.executor.transport.limits = Limits()  # the server's own check
        with pytest.raises(InvalidArgumentError, match=r"limits\.call_bytes_max"):
            client.import_profile(wide)
        client.import_profile(profile_of({"ads": falling(1000)}))


def test_a_message_grows_beyond_the_bound_alone():
    """It is reserved as it comes: what it holds itself must not keep it out."""
    inflight = Inflight(10)
    with inflight.reservation() as held:
        held.check_room(100)
        for _ in range(10):
            held.add(10)
        assert inflight.reserved_bytes == 100
        with inflight.reservation() as other, pytest.raises(OverloadedError):
            other.add(1)
    assert inflight.reserved_bytes == 0


def test_of_messages_that_grow_together_one_is_finished():
    inflight = Inflight(10)
    with inflight.reservation() as first:
        with inflight.reservation() as second:
            first.add(6)
            second.add(4)
            for held in (first, second):
                with pytest.raises(OverloadedError):
                    held.add(1)
        first.add(100)
    assert inflight.reserved_bytes == 0


# Half sent


@pytest.mark.parametrize("path", ["/api/v1/profile", "/api/v1/hot-set"])
async def test_half_sent_documents_keep_nobody_out(rest, path):
    """Four that announced a GiB and sent two bytes held all that may be in flight."""
    held: list[int] = []

    async def half_sent(others: int) -> AsyncIterator[bytes]:
        yield b"xx"
        held.append(rest.service.inflight.reserved_bytes)
        if others:
            await put(others - 1)
        else:
            await rest.put("/api/v1/profile", profile_of({"ads": {1: 2}}).to_bytes())

    async def put(others: int) -> None:
        length = rest.service.store.limits.call_bytes_max
        headers = {"content-type": "application/octet-stream", "content-length": str(length)}
        answer = await rest.client.put(path, content=half_sent(others), headers=headers)
        assert answer.status_code == 400, answer.text

    await put(7)
    assert held == [2, 4, 6, 8, 10, 12, 14, 16]
    assert rest.service.inflight.reserved_bytes == 0


@pytest.mark.rest(inflight_bytes_max=BOUND)
async def test_a_document_that_would_not_fit_is_refused_before_it_comes(rest):
    async def never() -> AsyncIterator[bytes]:
        pytest.fail("it was read")
        yield b""

    headers = {"content-type": "application/octet-stream", "content-length": str(BOUND)}
    with rest.service.inflight.reservation() as held:
        held.add(1)
        answer = await rest.client.put("/api/v1/profile", content=never(), headers=headers)
    assert answer.status_code == 503, answer.text


# Parsing


@pytest.mark.rest(inflight_bytes_max=BOUND)
async def test_parsing_is_counted_by_rest(rest):
    """A document counted as its own size, and took 28 times as much."""
    for path in ("/api/v1/profile", "/api/v1/hot-set"):
        with rest.service.inflight.reservation() as held:
            held.add(BOUND // 2 - MIB)  # the other half is what parsing may take
            await rest.put(path, GARBAGE, 400)
            held.add(1)
            refusal = await rest.put(path, GARBAGE, 503)
            assert "inflight_bytes_max" in refusal["message"]
            small = await rest.put(path, GARBAGE[: MIB // 8], 400)
            assert "expected an embstore" in small["message"]
    assert rest.service.inflight.reserved_bytes == 0


@pytest.fixture
def holding(server: Server) -> Callable[[int], AbstractContextManager[None]]:
    """Return what has so many bytes of the server in flight inside a with block."""
    inflight = server.service.inflight

    async def hold(by: int) -> None:
        inflight.reserved_bytes += by

    @contextmanager
    def holding(count: int) -> Iterator[None]:
        on_loop(hold(count))
        yield
        on_loop(hold(-count))
        assert inflight.reserved_bytes == 0

    return holding


@pytest.mark.parametrize("verb", DOCUMENTS)
@pytest.mark.parametrize("piece_bytes", [0, MIB // 4], ids=["unary", "stream"])
def test_parsing_is_counted_by_grpc(verb, piece_bytes, stub, holding):
    content = GARBAGE[: MIB - 1024]  # a message has a header besides
    for count, code in ((BOUND // 2 - MIB, "INVALID_ARGUMENT"), (BOUND // 2, "UNAVAILABLE")):
        with holding(count):
            found = refusal(lambda: sent(stub, verb, content, piece_bytes))
        assert found.code == code, found


def test_a_document_passes_beside_other_calls(stub, holding):
    with holding(BOUND // 2):
        sent(stub, "ImportProfile", profile_of({"ads": {1: 5}}).to_bytes())
        sent(stub, "PinHotSet", hot_set_of(ads=[1]).to_bytes())

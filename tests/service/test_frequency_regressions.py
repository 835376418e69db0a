"""Documents that took more of a server than they should: half sent, hostile, or large.

What files are refused, and what reading them takes, `tests/unit/test_archive.py` asks.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.errors import OverloadedError
from embstore.frequency.hotset import HotSet
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from embstore_server.inflight import Inflight
from tests.service.frequency_samples import called, profile_of
from tests.service.plain import Payload
from tests.service.rest import Rest, filled, run
from tests.serving import Server, on_loop

MIB = 1 << 20
BOUND = 16 * MIB
GARBAGE = bytes(MIB)
"""No document, which is found when it is parsed."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a store with "ads" (1000 rows) and "ads/stats" (50)."""
    return filled(tmp_path / "store")


# Bytes in flight


def test_a_message_grows_beyond_the_bound_alone() -> None:
    """It is reserved as it comes: what it holds itself must not keep it out."""
    inflight = Inflight(10)
    with inflight.reservation() as held:
        held.check_room(100)
        for _ in range(10):
            held.add(10)
        assert inflight.held_bytes == 100
        with inflight.reservation() as other, pytest.raises(OverloadedError):
            other.add(1)
    assert inflight.held_bytes == 0


def test_of_messages_that_grow_together_one_is_finished() -> None:
    inflight = Inflight(10)
    with inflight.reservation() as first:
        with inflight.reservation() as second:
            first.add(6)
            second.add(4)
            for held in (first, second):
                with pytest.raises(OverloadedError):
                    held.add(1)
        first.add(100)
    assert inflight.held_bytes == 0


# Half sent


@pytest.mark.parametrize("path", ["/api/v1/profile", "/api/v1/hot-set"])
def test_half_sent_documents_keep_nobody_out(data: Path, path: str) -> None:
    """Four that announced a GiB and sent two bytes held all that may be in flight."""

    async def scenario(rest: Rest) -> None:
        held: list[int] = []

        async def half_sent(others: int) -> AsyncIterator[bytes]:
            yield b"xx"
            held.append(rest.service.inflight.held_bytes)
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
        assert rest.service.inflight.held_bytes == 0

    run(data, scenario)


def test_a_document_that_would_not_fit_is_refused_before_it_comes(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        async def never() -> AsyncIterator[bytes]:
            pytest.fail("it was read")
            yield b""

        headers = {"content-type": "application/octet-stream", "content-length": str(BOUND)}
        with rest.service.inflight.reservation() as held:
            held.add(1)
            answer = await rest.client.put("/api/v1/profile", content=never(), headers=headers)
        assert answer.status_code == 503, answer.text

    run(data, scenario, inflight_bytes_max=BOUND)


# Parsing


def test_parsing_is_counted_by_rest(data: Path) -> None:
    """A document counted as its own size, and took 28 times as much."""

    async def scenario(rest: Rest) -> None:
        for path in ("/api/v1/profile", "/api/v1/hot-set"):
            with rest.service.inflight.reservation() as held:
                held.add(BOUND // 2 - MIB)  # the other half is what parsing may take
                await rest.put(path, GARBAGE, 400)
                held.add(1)
                refusal = await rest.put(path, GARBAGE, 503)
                assert "inflight_bytes_max" in refusal["message"]
                small = await rest.put(path, GARBAGE[: MIB // 8], 400)
                assert "expected an embstore" in small["message"]
        assert rest.service.inflight.held_bytes == 0

    run(data, scenario, inflight_bytes_max=BOUND)


@pytest.fixture
def held_stub(tmp_path: Path) -> Iterator[tuple[Any, Callable[[int], Any]]]:
    """Yield a stub, and what holds bytes of its server inside a with block."""
    data = filled(tmp_path / "store")

    def opened() -> embstore.Store:
        return embstore.open(data, cache_bytes=MIB, device="cpu")

    with Server(opened, data, inflight_bytes_max=BOUND) as server:
        inflight = server._service.inflight

        @contextmanager
        def holding(count: int) -> Iterator[None]:
            async def hold(by: int) -> None:
                inflight.held_bytes += by

            on_loop(hold(count))
            try:
                yield
            finally:
                on_loop(hold(-count))
            assert inflight.held_bytes == 0

        with grpc.insecure_channel(server.address) as channel:
            made: Callable[[Any], Any] = EmbstoreStub
            yield made(channel), holding


@pytest.mark.parametrize("piece_bytes", [0, MIB // 4], ids=["unary", "stream"])
def test_parsing_is_counted_by_grpc(
    held_stub: tuple[Any, Callable[[int], Any]], piece_bytes: int
) -> None:
    stub, holding = held_stub
    content = np.frombuffer(GARBAGE, "u1")[: MIB - 1024]  # a message has a header besides
    payload = Payload(0)
    place = payload.add(content, "u1")
    profile = pb.ImportProfileRequest(
        header=pb.ImportProfileRequest.Header(profile=place), payload=payload.content
    )
    hot_set = pb.PinHotSetRequest(
        header=pb.PinHotSetRequest.Header(hot_set=place), payload=payload.content
    )
    for verb, request, reply in (
        ("ImportProfile", profile, pb.ProfileImportedReply),
        ("PinHotSet", hot_set, pb.HotSetPinnedReply),
    ):
        for count, code in ((BOUND // 2 - MIB, "INVALID_ARGUMENT"), (BOUND // 2, "UNAVAILABLE")):
            with holding(count), pytest.raises(grpc.RpcError) as caught:
                called(stub, verb, request, reply, piece_bytes)
            assert caught.value.code().name == code, caught.value.details()


def test_a_document_passes_beside_other_calls(
    held_stub: tuple[Any, Callable[[int], Any]],
) -> None:
    stub, holding = held_stub
    sent = (profile_of({"ads": {1: 5}}).to_bytes(), HotSet({"ads": np.array([1])}).to_bytes())
    verbs = ("ImportProfile", "profile"), ("PinHotSet", "hot_set")
    with holding(BOUND // 2):
        for (verb, name), content in zip(verbs, sent, strict=True):
            payload = Payload(0)
            place = payload.add(np.frombuffer(content, "u1"), "u1")
            request: Any = getattr(pb, f"{verb}Request")
            header = request.Header(**{name: place})
            getattr(stub, verb)(request(header=header, payload=payload.content))

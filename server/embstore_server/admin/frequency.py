"""Profiles, hot sets and the warm-up of the cache, and the figures of all three.

    GET, PUT          /api/v1/profile       the file, as application/octet-stream
    GET, PUT, DELETE  /api/v1/hot-set       the file; what is pinned
    GET, POST         /api/v1/cache/warm    how far it is; begin
    GET               /api/v1/frequency     what is counted, recorded, warmed and pinned

A file comes whole, with its Content-Length, of at most limits.call_bytes_max; what it holds is
checked before anything changes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile
from embstore.results import HotSetFacts
from embstore.store import Store
from embstore_server.admin.calls import Call, Calling, CallRoute
from embstore_server.admin.guard import DOCUMENT_TYPE, announced_bytes
from embstore_server.admin.models import CONTEXT_EXAMPLE, Context, Reply, Request, examples
from embstore_server.frequency import check_size, hot_set_bytes, parsing_bytes
from embstore_server.parsing import renames
from embstore_server.service import Service
from embstore_server.warming import SHARE

router = APIRouter(route_class=CallRoute, tags=["frequency"])

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_RECEIVED: dict[str, Any] = {
    "requestBody": {"required": True, "content": {DOCUMENT_TYPE: _BINARY}},
}
_SENT: dict[int | str, dict[str, Any]] = {200: {"content": {DOCUMENT_TYPE: _BINARY}}}

_HOT_SET_EXAMPLE = {"version": 3, "rows": 4194304, "bytes": 268435456, "pinned_rows": 4194304}
_WARMING_EXAMPLE = {"rows": 1200000, "of": 2400000, "running": True, "error": None}
_FREQUENCY_EXAMPLE: dict[str, Any] = {
    "context": CONTEXT_EXAMPLE,
    "count_rate": 0.1,
    "counted_calls": 12000,
    "counted_accesses": 638976000,
    "memory_bytes": 134217728,
    "tables": {
        "ads": {
            "distinct": 812345,
            "accesses": 24576000,
            "error": 0,
            "is_exact": True,
            "profile_rows": 2000000,
        }
    },
    "recorded": {"rate": 0.03125, "events": 1000000, "calls": 9000},
    "warming": _WARMING_EXAMPLE,
    "hot_set": _HOT_SET_EXAMPLE,
}


# Profiles


class ProfileReply(Reply):
    """The profile that was imported."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "tables": {"ads": 812345}})

    context: Context
    tables: dict[str, int] = Field(description="Rows that the profile knows, by table")


@router.get("/profile", name="ExportProfile", response_class=Response, responses=_SENT)
async def export_profile(
    call: Calling,
    source: Annotated[
        Literal["counted", "imported"], Query(description="What the server counted, or was given")
    ] = "counted",
) -> Response:
    """Return a profile as a file."""
    answered = await call.run_beside(lambda store: store.export_profile(source=source).to_bytes())
    return _file(answered.value, "embstore.profile")


@router.put("/profile", name="ImportProfile", openapi_extra=_RECEIVED)
async def import_profile(
    call: Calling,
    request: HttpRequest,
    rename: Annotated[
        list[str] | None,
        Query(description="A=B: table A of the profile is table B here; several times"),
    ] = None,
) -> ProfileReply:
    """Take a profile for the tables that it names, in the place of the one before."""
    renamed = renames("rename", rename or [])

    async with _received(call, request, "a profile") as content:

        def work(store: Store) -> dict[str, int]:
            profile = Profile.from_bytes(content, "the profile")
            store.import_profile(profile, rename=renamed)
            return {renamed.get(name, name): len(t.keys) for name, t in profile.tables.items()}

        answered = await call.run_beside(work)
    return ProfileReply(context=Context.of(answered.context), tables=answered.value)


# Hot sets


class HotSetDescription(Reply):
    """The hot set that is pinned."""

    model_config = examples(_HOT_SET_EXAMPLE)

    version: int = Field(description="Each that is pinned is above the one before; 0: none is")
    rows: int = Field(description="Of all tables")
    bytes: int = Field(description="Of these rows, as the set was chosen for")
    pinned_rows: int = Field(description="Of the rows, those that are in the cache to stay")

    @classmethod
    def of(cls, facts: HotSetFacts) -> "HotSetDescription":
        """Return what is pinned."""
        return cls(
            version=facts.version, rows=facts.rows, bytes=facts.bytes, pinned_rows=facts.pinned_rows
        )


class HotSetReply(Reply):
    """What is pinned now."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "hot_set": _HOT_SET_EXAMPLE})

    context: Context
    hot_set: HotSetDescription = Field(description="What is pinned now")


@router.get("/hot-set", name="GetHotSet", response_class=Response, responses=_SENT)
async def get_hot_set(call: Calling) -> Response:
    """Return the pinned hot set as a file; 404 where none is."""
    answered = await call.run_beside(hot_set_bytes)
    if answered.value is None:
        raise HTTPException(404, "no hot set is pinned")
    return _file(answered.value, "embstore.hotset")


@router.put("/hot-set", name="PinHotSet", openapi_extra=_RECEIVED)
async def pin_hot_set(call: Calling, request: HttpRequest) -> HotSetReply:
    """Keep a hot set in the cache, in the place of the one before, whose version must be lower.

    Rows of both stay all the time. When the answer does not come in time, it is pinned all the
    same; sent again, it is answered as before.
    """
    async with _received(call, request, "a hot set") as content:
        answered = await call.run_beside(
            lambda store: store.pin_hot_set(HotSet.from_bytes(content, "the hot set"))
        )
    return HotSetReply(
        context=Context.of(answered.context), hot_set=HotSetDescription.of(answered.value)
    )


@router.delete("/hot-set", name="UnpinHotSet")
async def unpin_hot_set(call: Calling) -> HotSetReply:
    """Pin no hot set any more. Its rows may leave the cache like others."""
    answered = await call.run_beside(lambda store: store.pin_hot_set(None))
    return HotSetReply(
        context=Context.of(answered.context), hot_set=HotSetDescription.of(answered.value)
    )


# Warming


class WarmingFigures(Reply):
    """How far the last warm-up is, or was."""

    model_config = examples(_WARMING_EXAMPLE)

    rows: int = Field(description="Brought in")
    of: int = Field(description="To bring in; 0: not known yet, or there was no warm-up")
    running: bool = Field(description="It is at work")
    error: str | None = Field(None, description="Why it ended early; null: it did not")

    @classmethod
    def now(cls, service: Service) -> "WarmingFigures":
        """Return it as the server knows it, without asking the engine."""
        state = service.warming.state()
        return cls(rows=state.rows, of=state.of, running=not state.finished, error=state.error)


class Warming(Reply):
    """How far the last warm-up is, or was."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "warming": _WARMING_EXAMPLE})

    context: Context
    warming: WarmingFigures = Field(description="The last one")


class WarmRequest(Request):
    """How much of the cache to warm."""

    model_config = examples({"share": SHARE})

    share: float = Field(SHARE, gt=0, le=1, description="Of the slots")


@router.post("/cache/warm", name="WarmCache", status_code=202)
async def warm_cache(call: Calling, request: WarmRequest | None = None) -> Warming:
    """Begin to bring the most frequent rows into the cache; calls go on meanwhile.

    One that runs for the same share is joined; while one runs for another, this is refused (503).
    """
    call.check_ready()
    call.service.warming.begun(request.share if request else SHARE)
    return _warming(call)


@router.get("/cache/warm", name="GetWarming")
async def get_warming(call: Calling) -> Warming:
    """Return how far the warm-up is."""
    call.check_ready()
    return _warming(call)


def _warming(call: Call) -> Warming:
    return Warming(
        context=Context.of(call.service.context()), warming=WarmingFigures.now(call.service)
    )


# Figures


class CountedTable(Reply):
    """What was counted of one table, and what its profile knows."""

    distinct: int = Field(description="Keys that counts are kept of")
    accesses: int = Field(description="Counted in all")
    error: int = Field(description="Every count is low by at most this")
    is_exact: bool = Field(description="Every key is counted; else a sketch counts")
    profile_rows: int = Field(description="Rows that the imported profile knows; 0: none is")


class Recorded(Reply):
    """The stretch of calls that is recorded, for the sizing of the cache."""

    rate: float = Field(description="Share of the keys that is kept")
    events: int = Field(description="Keys of calls that are kept")
    calls: int = Field(description="Of the stretch")


class Frequency(Reply):
    """What the server knows of the frequency of rows."""

    model_config = examples(_FREQUENCY_EXAMPLE)

    context: Context
    count_rate: float = Field(description="Share of the lookups that is counted; 0: none")
    counted_calls: int = Field(description="Lookups that were counted")
    counted_accesses: int = Field(description="Keys of these, repeated ones each time")
    memory_bytes: int = Field(description="Of counts, recording and profiles")
    tables: dict[str, CountedTable] = Field(description="By name")
    recorded: Recorded = Field(description="The stretch that is recorded")
    warming: WarmingFigures = Field(description="The last warm-up")
    hot_set: HotSetDescription = Field(description="What is pinned")


@router.get("/frequency", name="GetFrequency")
async def get_frequency(call: Calling) -> Frequency:
    """Return what is counted, recorded, warmed and pinned."""
    answered = await call.run(lambda store: store.stats()["frequency"])
    told = answered.value | {"warming": WarmingFigures.now(call.service)}
    return Frequency.model_validate({"context": Context.of(answered.context), **told})


# Files


def _file(content: bytes, name: str) -> Response:
    named = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=DOCUMENT_TYPE, headers=named)


@asynccontextmanager
async def _received(call: Call, request: HttpRequest, what: str) -> AsyncIterator[bytes]:
    """Yield the file that a request brings; its bytes are in flight as they come, until the block
    ends, and so is what it takes to parse them.

    Raises
    ------
    InvalidArgumentError : it is too large.
    OverloadedError : so much is in flight already.
    StoreClosedError : calls are not served yet, or not any more.
    """
    call.check_ready()
    if "content-length" not in request.headers:
        raise HTTPException(411, f"expected {what} with its Content-Length")
    size = announced_bytes(request.headers)
    check_size(call.service.store, size, what)
    with call.service.inflight.reservation() as held:
        held.check_room(size)
        pieces = []
        async for piece in request.stream():
            held.add(len(piece))
            pieces.append(piece)
        content = b"".join(pieces)
        del pieces
        held.add(parsing_bytes(call.service, len(content)))
        yield content

"""Profiles and hot sets are sent and received as files.

    GET, PUT  /api/v1/profile
    GET, PUT  /api/v1/hot-set

A file is sent as application/octet-stream. Its whole content arrives with a Content-Length of at
most limits.call_bytes_max, and is checked before anything changes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from embstore.commands import ExportProfile, GetHotSet, ImportProfile, PinHotSet, Right
from embstore.hotness.stats import HotSetStats
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.rights import EVERYTHING
from embstore_server.setup.parsing import pairs
from embstore_server.transports.rest.calls import Call, Calling, CallRoute
from embstore_server.transports.rest.guard import DOCUMENT_TYPE, announced_bytes
from embstore_server.transports.rest.models import reply, reply_model

router = APIRouter(route_class=CallRoute, tags=["frequency"])

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_RECEIVED: dict[str, Any] = {
    "requestBody": {"required": True, "content": {DOCUMENT_TYPE: _BINARY}},
}
_SENT: dict[int | str, dict[str, Any]] = {200: {"content": {DOCUMENT_TYPE: _BINARY}}}

_PROFILE = reply_model(
    "ProfileReply", "The imported profile.", tables=(dict[str, int], "Rows in it, by table")
)
_HOT_SET = reply_model(
    "HotSetReply", "The pinned hot set.", hot_set=(HotSetStats, "The pinned hot set")
)


@router.get("/profile", name="ExportProfile", response_class=Response, responses=_SENT)
async def export_profile(
    call: Calling,
    source: Annotated[
        Literal["counted", "imported"], Query(description="Counted by the server, or imported")
    ] = "counted",
) -> Response:
    """Return a profile as a file."""
    answered = await call.execute_long(
        lambda: ExportProfile(source), lambda _, profile: profile.to_bytes()
    )
    return _file(answered.value, "embstore.profile")


@router.put("/profile", name="ImportProfile", openapi_extra=_RECEIVED, response_model=_PROFILE)
async def import_profile(
    call: Calling,
    request: HttpRequest,
    rename: Annotated[
        list[str] | None,
        Query(description="A=B: table A of the profile is table B here; several times"),
    ] = None,
) -> dict[str, Any]:
    """Import a profile for the tables that it names, in place of their previous profile."""
    renamed = pairs("rename", "A=B", rename or [])

    def rows(command: ImportProfile, _: None) -> dict[str, int]:
        tables = command.profile.tables.items()
        return {renamed.get(name, name): len(table.keys) for name, table in tables}

    async with _received(call, request, "a profile") as content:
        answered = await call.execute_long(
            lambda: ImportProfile(Profile.from_bytes(content, "the profile"), renamed), rows
        )
    return reply(answered.context, tables=answered.value)


@router.get("/hot-set", name="GetHotSet", response_class=Response, responses=_SENT)
async def get_hot_set(call: Calling) -> Response:
    """Return the pinned hot set as a file; 404 if none is pinned."""
    answered = await call.execute_long(GetHotSet, lambda _, hot_set: hot_set and hot_set.to_bytes())
    if answered.value is None:
        raise HTTPException(404, "no hot set is pinned")
    return _file(answered.value, "embstore.hotset")


@router.put("/hot-set", name="PinHotSet", openapi_extra=_RECEIVED, response_model=_HOT_SET)
async def pin_hot_set(call: Calling, request: HttpRequest) -> dict[str, Any]:
    """Pin a hot set in place of the pinned hot set, whose version must be lower.

    Until the new set is pinned, rows of both sets stay in the cache. If the answer does not arrive
    in time, the hot set is pinned all the same; the call can be sent again, and gets the same
    answer.
    """
    async with _received(call, request, "a hot set") as content:
        answered = await call.execute_long(
            lambda: PinHotSet(HotSet.from_bytes(content, "the hot set")), lambda _, facts: facts
        )
    return reply(answered.context, hot_set=vars(answered.value))


def _file(content: bytes, name: str) -> Response:
    named = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=DOCUMENT_TYPE, headers=named)


@asynccontextmanager
async def _received(call: Call, request: HttpRequest, what: str) -> AsyncIterator[bytes]:
    """Yield the file in a request.

    The file's bytes count as in flight from their arrival until the block ends; so does the memory
    to parse them.

    Raises InvalidArgumentError if the file is too large; OverloadedError if too many bytes are in
    flight already; StoreClosedError if calls are not served; PermissionDeniedError.
    """
    call.check_ready()
    call.caller.principal.check(Right.ADMIN, [EVERYTHING])  # do not read the file in vain
    if "content-length" not in request.headers:
        raise HTTPException(411, f"expected {what} with its Content-Length")
    size = announced_bytes(request.headers)
    call.service.check_document(size, what)
    with call.service.reservation(call.caller) as reserved:
        reserved.check_room(size)
        pieces = []
        async for piece in request.stream():
            reserved.add(len(piece))
            pieces.append(piece)
        content = b"".join(pieces)
        del pieces
        reserved.add(call.service.parsing_bytes(len(content)))
        yield content

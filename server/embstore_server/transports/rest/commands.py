"""POST /api/v1/commands/{Verb}: calls a verb by the protobuf-JSON of its request and reply.

Each verb has a route, so that it is counted and documented by its name. Verbs without a JSON form
are refused by the wire format (`embstore_proto.verbs`).
"""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embstore_proto.schemas import schema_of
from embstore_proto.verbs import VERBS, Verb
from embstore_server.transports.rest.calls import Calling, CallRoute

router = APIRouter(prefix="/commands", route_class=CallRoute, tags=["commands"])


def _described(message: Any, *, is_reply: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a body."""
    schema = schema_of(message.DESCRIPTOR, is_reply=is_reply)
    return {"content": {"application/json": {"schema": schema}}}


def _add(verb: Verb) -> None:
    async def called(call: Calling, request: Request) -> Response:
        arrived = verb.arrived(verb.request_of_json(await request.body()).SerializeToString())
        answered = await call.execute(arrived.command, arrived.origin)
        text = verb.reply_json(answered.value, answered.context)
        return Response(text, media_type="application/json")

    router.post(
        f"/{verb.name}",
        name=verb.name,
        operation_id=f"Call{verb.name}",
        description=verb.command.__doc__,
        include_in_schema=verb.has_json,
        openapi_extra={"requestBody": _described(verb.request, is_reply=False)},
        responses={200: _described(verb.reply, is_reply=True)},
    )(called)


for _verb in VERBS.values():
    _add(_verb)

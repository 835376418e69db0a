"""Refusals of requests: all have the form {"error", "message", "request"}, and one function finds
their status.

The errors of `embstore.errors` have the status that `embstore_proto.status` assigns. A request that
HTTP itself refuses (no such route, another method, a large body, another media type) keeps HTTP's
status. A body or parameter that does not fit its model is answered with 400, as if the store had
refused it. These two kinds are mistakes of the caller, and are named InvalidArgumentError. Any
other exception is a bug: it is logged with its traceback, and the answer is 500 without the
exception's text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi.exceptions import RequestValidationError
from grpc import StatusCode
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore_proto.status import answer_of, message_of
from embstore_server.path.answers import answered_error
from embstore_server.path.caller import Caller
from embstore_server.transports.rest.models import ErrorReply

_PROBLEMS_MAX = 10


@dataclass(frozen=True)
class Refusal:
    """The answer to an exception."""

    status: int
    code: str  # gRPC's code, for the stats of calls
    error: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, scope: Scope) -> Response:
        """Return the answer to the request of `scope`."""
        reply = ErrorReply(error=self.error, message=self.message, request=request_id(scope))
        return JSONResponse(reply.model_dump(), self.status, headers=dict(self.headers))


def request_id(scope: Scope) -> str:
    """Return the id that the guard gave a request."""
    return str(scope["state"]["request_id"])


def refusal_of(error: Exception, verb: str, caller: Caller | None = None) -> Refusal:
    """Return the answer to an exception of a call; log the exception if it is a bug."""
    if isinstance(error, HTTPException):
        return refused(error.status_code, str(error.detail), error.headers)
    if isinstance(error, RequestValidationError):
        error = InvalidArgumentError(_problems(error))
    error = answered_error(error, verb, caller)
    answer = answer_of(error)
    name = type(error).__name__ if isinstance(error, EmbstoreError) else "InternalError"
    headers = {"www-authenticate": "Bearer"} if answer.code is StatusCode.UNAUTHENTICATED else {}
    return Refusal(answer.http, answer.code.name, name, message_of(error), headers)


def refused(status: int, message: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """Return the refusal of a request that HTTP itself refuses."""
    name = InvalidArgumentError.__name__
    return Refusal(status, StatusCode.INVALID_ARGUMENT.name, name, message, headers or {})


def _problems(error: RequestValidationError) -> str:
    """Return the problems of a request, each with its position: "body.cache_bytes: Input should be
    ..."."""
    problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    if len(problems) > _PROBLEMS_MAX:
        problems[_PROBLEMS_MAX:] = [f"and {len(problems) - _PROBLEMS_MAX} more"]
    return "; ".join(problems)

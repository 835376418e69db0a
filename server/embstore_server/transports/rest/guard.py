"""Refuses requests before any route, and gives every request an id.

**Browsers.** Every client that reaches the port can call every route, and a web page that an
operator visits reaches loopback. Therefore the guard refuses three kinds of requests that only a
browser sends, on behalf of a page of another site:

- a request whose `Origin` is not the requested host: a page's script or form has sent it
- a POST whose body is not declared application/json: a page can send such a POST without a
  preflight (a PUT, whose body may be an application/octet-stream document, always needs a
  preflight)
- a request whose `Host` could be the name of a page's site: if that name resolves to this machine
  (DNS rebinding), the page has the same origin. If the server listens on a loopback address, only
  loopback names and addresses are accepted. On other addresses, names with a dot are refused,
  because public names contain a dot; names that no public server can resolve are accepted.
  `allowed_hosts` contains further names that are accepted.

**Framing.** A body that has a length and is also chunked is refused: a proxy may see another
request in it.

**Sizes.** A body above BODY_BYTES_MAX is refused; if its length is announced, it is refused before
it arrives. The documents that are sent to DOCUMENT_PATHS can be larger. Their routes have a limit
of their own, which the guard does not know before the store is open.

**Ids.** If the `X-Request-Id` of a request is a plain word, the request keeps this id; otherwise it
gets a new id. The answer contains the id.
"""

import re
from collections.abc import Iterator, Sequence
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embstore_proto.addresses import is_loopback
from embstore_server.transports.rest.errors import Refusal, refused
from embstore_server.transports.rest.hosts import is_private, name_of

BODY_BYTES_MAX = 1 << 20
_TOO_LARGE = f"expected a body of at most {BODY_BYTES_MAX} bytes"
TABLES_PATH = "/api/v1/tables/"
DOCUMENT_PATHS = ("/api/v1/profile", "/api/v1/hot-set")
"""Paths to which a PUT sends a file."""
DOCUMENT_TYPE, _JSON_TYPE = "application/octet-stream", "application/json"

ANY_HOST = "*"
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, loopback: bool, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._loopback = loopback
        self._allowed_hosts = {name.lower() for name in allowed_hosts}
        self._allowed_ends = tuple(n[1:] for n in self._allowed_hosts if n.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        given = headers.get("x-request-id", "")
        state["request_id"] = given if _REQUEST_ID.fullmatch(given) else uuid4().hex[:16]
        state["received_bytes"] = 0
        scope["path"] = _path(scope)
        named = _naming(send, state["request_id"])
        has_document = scope["method"] == "PUT" and scope["path"] in DOCUMENT_PATHS
        refusal = next(self._refusals(scope["method"], headers, has_document), None)
        if refusal is not None:
            await refusal.response(scope)(scope, receive, named)
            return
        await self._app(scope, _counting(receive, state, is_bounded=not has_document), named)

    def _refusals(self, method: str, headers: Headers, has_document: bool) -> Iterator[Refusal]:
        host = headers.get("host", "")
        name = name_of(host)
        if host and (name is None or not self._is_own(name)):
            yield _forbidden(
                f"expected a Host of this {'machine' if self._loopback else 'network'} "
                f"(allowed_hosts has others), found {host!r}"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            yield _forbidden(f"expected no Origin, or that of {host!r}, found {origin!r}")
        if "content-length" in headers and "transfer-encoding" in headers:
            both = "expected Content-Length or Transfer-Encoding, found both"
            yield refused(400, both, {"connection": "close"})  # the rest of the stream is undefined
        expected = DOCUMENT_TYPE if has_document else _JSON_TYPE
        if method not in _SAFE_METHODS and not _is_declared(headers, expected):
            found = headers.get("content-type", "none")
            yield refused(415, f"expected Content-Type {expected}, found {found!r}")
        if not has_document and announced_bytes(headers) > BODY_BYTES_MAX:
            yield refused(413, _TOO_LARGE)

    def _is_own(self, name: str) -> bool:
        if name in self._allowed_hosts or ANY_HOST in self._allowed_hosts or is_loopback(name):
            return True
        if name.endswith(self._allowed_ends):
            return True
        return not self._loopback and ("." not in name or is_private(name))


def _path(scope: Scope) -> str:
    """Return the path, decoded; below TABLES_PATH it stays as it was sent, so that %2F is always
    part of a name."""
    path, raw = str(scope["path"]), scope.get("raw_path")
    if path.startswith(TABLES_PATH) and raw and raw.startswith(TABLES_PATH.encode()):
        return str(raw.decode("latin-1"))
    return path


def _is_declared(headers: Headers, expected: str) -> bool:
    """Return whether the body is declared as `expected`, or there is neither body nor
    declaration."""
    declared = headers.get("content-type")
    if declared is None:
        return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    return declared.partition(";")[0].strip().lower() == expected


def announced_bytes(headers: Headers) -> int:
    """Return the announced length of a body; 0 if none is announced."""
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() else 0


def _forbidden(message: str) -> Refusal:
    return Refusal(403, "PERMISSION_DENIED", "PermissionDeniedError", message)


def _counting(receive: Receive, state: dict[str, int], *, is_bounded: bool) -> Receive:
    """Return a `receive` that counts a body's bytes, and refuses a body that grows too large."""

    async def counted() -> Message:
        message = await receive()
        state["received_bytes"] += len(message.get("body", b""))
        if is_bounded and state["received_bytes"] > BODY_BYTES_MAX:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return counted


def _naming(send: Send, request_id: str) -> Send:
    """Return a `send` that adds the request's id to the answer."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Request-Id"] = request_id
        await send(message)

    return named

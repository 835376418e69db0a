"""HEAD: answered like GET, but without a body (RFC 9110, 9.3.2). FastAPI's routes answer only
GET."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """ASGI middleware that makes the routes of GET answer HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)

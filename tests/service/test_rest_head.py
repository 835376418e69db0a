"""HEAD: what GET answers, without the body."""

import re

from tests.service.rest import Rest


async def test_every_route_of_get_answers_head(rest: Rest) -> None:
    paths = (await rest.client.get("/openapi.json")).json()["paths"]
    asked = [path for path, methods in paths.items() if "get" in methods]
    assert len(asked) > 10
    for path in [
        "/",
        "/page/main.js",
        "/openapi.json",
        *(re.sub("{.*?}", "ads", p) for p in asked),
    ]:
        found, headed = await rest.client.get(path), await rest.client.head(path)
        assert headed.status_code == found.status_code, path
        assert headed.content == b""
        assert headed.headers["content-type"] == found.headers["content-type"]
        assert headed.headers["x-request-id"]


async def test_head_of_what_is_not_there_or_changes_something(rest: Rest) -> None:
    for path, status in (("/api/v1/none", 404), ("/api/v1/flush", 405)):
        answer = await rest.client.head(path)
        assert (answer.status_code, answer.content) == (status, b"")

"""GET /: the page of a running server, and the files that it loads.

The page is plain HTML, CSS and modules of JavaScript, in `embstore_server/page`: there is no build
step, and it loads nothing from other sites. It calls the routes of REST like any other client and
shows their answers, so the page itself needs no token. If the server has tokens, the page asks for
a token, and sends it with each request. All its paths are relative, so a proxy can serve it below a
path of its own.

The files are read once, when the application is made, and served from memory: other paths do not
exist. The **content policy** lets the files load from and call only this server. It forbids inline
scripts, and showing the page in a frame.
"""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

PAGE_PATH = "/page/"
_INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # a browser stores the file, but checks its tag each time
}


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    type: str
    tag: str
    """The entity tag by which a browser checks whether its stored file has this content."""


def page_files() -> dict[str, PageFile]:
    """Return the files of the page by their path below PAGE_PATH."""
    return dict(_files(files("embstore_server") / "page", ""))


def _files(folder: Traversable, above: str) -> Iterator[tuple[str, PageFile]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        elif (kind := entry.name.rpartition(".")[2]) in _TYPES:
            content = entry.read_bytes()
            tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
            yield above + entry.name, PageFile(content, _TYPES[kind], tag)


def add_page(app: FastAPI) -> None:
    """Add the page's routes."""
    found = page_files()

    async def page(request: Request) -> Response:
        return _answer(found[_INDEX], request)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in found:
            raise HTTPException(404, f"the page has no file {name[:200]!r}")
        return _answer(found[name], request)

    app.add_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_route(PAGE_PATH + "{name:path}", file, methods=["GET"], include_in_schema=False)


def _answer(file: PageFile, request: Request) -> Response:
    headers = _HEADERS | {"etag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers | {"content-type": file.type})

"""Destinations at URLs that lie, break off, or point elsewhere: an error that names the file, a
store that goes on, and backups that were made before are whole.

The disk of such a destination is fsspec's memory file system, or a web server of this process.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from embstore.errors import CorruptTableError, EmbstoreError, StorageError
from embstore.storage.backup import restore_from
from embstore.storage.destinations import open_destination
from embstore.storage.files import Files
from tests.conformance.cases import engine_of
from tests.faults.backups import check_restored
from tests.faults.damage import SEED
from tests.faults.every_file import names_of
from tests.faults.promises import Promise, content_of
from tests.faults.training import open_store, train

fsspec = pytest.importorskip("fsspec", reason="needs the extra 'remote'")

LIES = ("cut pieces", "cut small files", "short reads", "endless", "lost", "refused")


class Lying(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
    """Memory that does not keep what it acknowledges, or says that it has what it has not."""

    protocol = "lying"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    lie = ""
    named = ""

    def is_lie(self, path: str, lie: str) -> bool:
        return Lying.lie == lie and Lying.named in path

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if self.is_lie(path, "refused"):
            raise OSError(5, "500 Internal Server Error")
        if mode == "wb" and self.is_lie(path, "cut pieces"):
            write = file.write
            file.write = lambda piece: write(bytes(piece)[:-1])
        if mode == "rb" and self.is_lie(path, "short reads"):
            file.seek(1)
        return file

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        cut = value[:-1] if self.is_lie(path, "cut small files") else value
        super().pipe_file(path, cut, **options)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = super().info(path, **options)
        if self.is_lie(path, "lost"):
            raise FileNotFoundError(path)
        return found | {"size": 1 << 60} if self.is_lie(path, "endless") else found


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URL where nothing lies until a test says so."""
    fsspec.register_implementation("lying", Lying, clobber=True)
    monkeypatch.setattr(Lying, "store", {})
    monkeypatch.setattr(Lying, "pseudo_dirs", [""])
    monkeypatch.setattr(Lying, "lie", "")
    monkeypatch.setattr(Lying, "named", "")
    yield f"lying://{tmp_path.name}"


def restored(place: str, path: Path) -> None:
    with closing(open_destination(place)) as source:
        restore_from(source, Files(path), None, None, lambda *_: None)


def check_either(path: Path, *promises: Promise) -> None:
    """Check that a store is one of these: a backup may be whole, though an error was told."""
    with open_store(path, read_only=True) as store:
        command = store.command
    check_restored(path, next(one for one in promises if one.command == command))


@pytest.mark.parametrize("named", [".log", ".rows", ".ids", ".catalogue"])
@pytest.mark.parametrize("lie", LIES)
def test_a_destination_that_lies_is_found_out(lying, tmp_path, lie, named, monkeypatch):
    with open_store(tmp_path / "store") as store:
        train(store, SEED, 8)
        engine_of(store).storage.merges.finish()
        store.backup(lying)
        first = content_of(store)
        train(store, SEED, 8)
        monkeypatch.setattr(Lying, "lie", lie)
        monkeypatch.setattr(Lying, "named", named)
        told = False
        try:
            store.backup(lying)
        except (EmbstoreError, OSError) as exc:
            told = named in str(exc)
            assert isinstance(exc, EmbstoreError)
        now = content_of(store)
        train(store, SEED, 1, label_last=False)  # the store goes on
        try:
            restored(lying, tmp_path / "lied to")
        except (StorageError, CorruptTableError):
            assert "store.json" not in names_of(tmp_path / "lied to")
        else:
            check_either(tmp_path / "lied to", now, *[first] * told)
        monkeypatch.setattr(Lying, "lie", "")
        if told and lie != "cut small files":
            restored(lying, tmp_path / "again")
            check_either(tmp_path / "again", now, first)
        store.backup(lying)  # after all, it is whole
        last = content_of(store)
    restored(lying, tmp_path / "last")
    check_restored(tmp_path / "last", last)


class _Web(BaseHTTPRequestHandler):
    """Serves the backups of a folder, or answers as `way` says for files that have `named`."""

    root: Path
    way = ""
    elsewhere = ""
    seen: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._answer(is_head=True)

    def do_GET(self) -> None:
        """Answer with a body."""
        self._answer(is_head=False)

    def _answer(self, *, is_head: bool) -> None:
        path = self.root / self.path.strip("/")
        if path.is_dir():
            links = "".join(
                f'<a href="{self.path.rstrip("/")}/{p.name}">x</a>' for p in path.iterdir()
            )
            return self._send(links.encode(), is_head, "text/html")
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes()
        if not path.name.endswith((".log", ".rows", ".ids")):
            return self._send(content, is_head)
        type(self).seen.append(self.path)
        if self.way == "500":
            return self.send_error(500)
        if self.way == "redirect to a file":
            return self._redirect(f"file://{path}")
        if self.way == "redirect to elsewhere":
            return self._redirect(f"{self.elsewhere}{self.path}")
        if self.way == "drops midway":
            self._send(content, is_head, kept=len(content) // 2)
            self.close_connection = True
            return None
        if self.way == "wrong length":
            return self._send(content[: len(content) // 2], is_head)
        return self._send(content, is_head)

    def _send(
        self, content: bytes, is_head: bool, kind: str = "application/octet-stream", kept: int = -1
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content if kept < 0 else content[:kept])

    def _redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[type[_Web], str, Path]]:
    """A web server of backups: its handler, its URL, and where they are."""
    pytest.importorskip("aiohttp", reason="needs what fsspec needs for http")
    handler = type("Web", (_Web,), {"root": tmp_path / "to", "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}", tmp_path / "to"
        server.shutdown()
        thread.join()


WAYS = ("", "500", "redirect to a file", "drops midway", "wrong length")


@pytest.mark.parametrize("way", WAYS)
def test_a_web_server_that_answers_wrongly_restores_nothing(web, tmp_path, way):
    handler, url, to = web
    with open_store(tmp_path / "store") as store:
        train(store, SEED, 8)
        store.backup(str(to))
        promise = content_of(store)
    handler.way = way
    if not way:
        restored(url, tmp_path / "again")
        return check_restored(tmp_path / "again", promise)
    with pytest.raises((StorageError, CorruptTableError)) as caught:
        restored(url, tmp_path / "again")
    assert any(name.strip("/") in str(caught.value) for name in handler.seen)
    assert "store.json" not in names_of(tmp_path / "again")
    return None

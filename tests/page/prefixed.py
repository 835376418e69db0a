"""A proxy that has a server below a path, as an operator's nginx does; nothing is outside.

location /embstore/ { proxy_pass http://127.0.0.1:8080/; proxy_set_header Host $http_host; }
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/embstore/"
_NOT_PASSED = {"connection", "transfer-encoding", "date", "server"}


@contextmanager
def prefixed(admin: str) -> Iterator[str]:
    """Yield HOST:PORT of a proxy in front of an admin port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == PREFIX.rstrip("/"):
                self._answer(301, [("Location", PREFIX)], b"")
            elif not self.path.startswith(PREFIX):
                self._answer(404, [], b"there is another program here")
            else:
                self._pass()

        def do_POST(self) -> None:
            self.do_GET()

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = "/" + self.path.removeprefix(PREFIX)
            with closing(HTTPConnection(admin)) as server:
                server.request(self.command, path, body or None, dict(self.headers.items()))
                found = server.getresponse()
                passed = [h for h in found.getheaders() if h[0].lower() not in _NOT_PASSED]
                self._answer(found.status, passed, found.read())

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() != "content-length":
                    self.send_header(name, value)
            if status != 304:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
            thread.join()

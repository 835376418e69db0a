"""A served store of two namespaces, whose callers have tokens, and how to call it as one."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import grpc

import embstore
from embstore import commands as c
from embstore.errors import EmbstoreError
from embstore_proto.envelope import Origin
from embstore_proto.status import error_of
from embstore_proto.verbs import VERBS, Outgoing, Verb
from embstore_server.access.tokens import Entry, new_secret, right_named, write
from tests.service.access.samples import KEYS, MEMBER, ROWS_OF_KEYS, config
from tests.service.faults.served import Served

TENANTS = {
    "nothing": {},
    "reader": {"a/*": "read"},
    "writer": {"a/*": "write", "shared/*": "read"},
    "owner": {"a/*": "admin"},
    "dashboard": {"*": "read"},
    "trainer": {"*": "write"},
    "operator": {"*": "admin"},
}
"""Rights by pattern, by name."""
SPACES = ("a", "b")


@cache
def secrets() -> dict[str, tuple[str, str]]:
    """Return secret and hash of each tenant; made once, as it takes a while."""
    return {name: new_secret() for name in TENANTS}


def token_of(name: str) -> str:
    """Return the token of a tenant."""
    return f"{name}.{secrets()[name][0]}"


def write_tokens(path: Path, *names: str, certificates: bool = False) -> Path:
    """Write a file of tenants, all where none is named; return its path."""
    entries = {}
    for name in names or TENANTS:
        rights = {pattern: right_named(right) for pattern, right in TENANTS[name].items()}
        entries[name] = Entry(name, None if certificates else secrets()[name][1], rights)
    write(path, entries)
    return path


def fill(store: embstore.Store) -> None:
    """Make the tables of both namespaces, a session in each with an announced step, a label."""
    for space in SPACES:
        for name in ("t", "u"):
            store.executor.execute(c.CreateTable(config(f"{space}/{name}")))
    store.checkpoint("first")


@contextmanager
def serving(tmp_path: Path, **settings: Any) -> Iterator[Served]:
    """Serve a filled store to the tenants."""
    data = tmp_path / "store"
    settings = {"tokens": write_tokens(tmp_path / "tokens.json")} | settings

    def opened() -> embstore.Store:
        store = embstore.open(data, cache_bytes=1 << 20, threads=1)
        fill(store)
        return store

    with Served(data, opened, **settings) as server:
        yield server


class Caller:
    """A connection of raw calls, in somebody's name; a context manager that closes it."""

    def __init__(self, address: str, token: str = "", credentials: Any = None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=options)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def execute(self, command: c.Command[Any], *, streamed: bool = False) -> Any:
        """Execute a command, or raise what the server answered; `streamed`: by the stream twin."""
        verb = VERBS[type(command).__name__]
        return self.raw(verb, verb.outgoing(command), streamed=streamed)

    def begin(self, command: c.Command[Any]) -> Any:
        """Send a command, and return the future of its answer."""
        verb = VERBS[type(command).__name__]
        outgoing = verb.outgoing(command)
        head = outgoing.serialised(None)
        message = head if outgoing.message is None else outgoing.message.joined(head)
        method = self._channel.unary_unary(f"/embstore.v1.Embstore/{verb.name}")
        return method.future(message, metadata=self._metadata, timeout=300.0)

    def raw(
        self, verb: Verb, outgoing: Outgoing, origin: Origin | None = None, streamed: bool = False
    ) -> bytes:
        """Send a request, and return the bytes of the reply."""
        header = outgoing.serialised(origin)
        chunks = [header] if outgoing.message is None else outgoing.message.framed(header).chunks()
        path = f"/embstore.v1.Embstore/{verb.name}{'Stream' if streamed else ''}"
        told = {"metadata": self._metadata, "timeout": 300.0}
        try:
            if streamed or (verb.is_streamed and verb.is_bulk):
                return b"".join(self._channel.stream_stream(path)(iter(chunks), **told))
            whole = header if outgoing.message is None else outgoing.message.joined(header)
            if verb.is_streamed:
                return b"".join(self._channel.unary_stream(path)(whole, **told))
            return self._channel.unary_unary(path)(whole, **told)
        except grpc.RpcError as exc:
            error = error_of(exc.code(), exc.details(), exc.trailing_metadata())
            raise error or EmbstoreError(f"{exc.code()}: {exc.details()}") from exc

    def open_session(self, space: str) -> None:
        """Open the session of a namespace, join it, and announce a step."""
        member = MEMBER.format(space)
        self.execute(c.OpenSession(f"{space}-session", (f"{space}/t",)))
        self.execute(c.JoinSession(f"{space}-session", 0, member))
        steps = (c.StepKeys(1, (c.StepTable(f"{space}/t", KEYS),)),)
        self.execute(c.Announce(member, steps))


def update_of(table: str) -> c.Update:
    """Return an update of one table."""
    return c.Update((c.TableGradients(table, None, KEYS, ROWS_OF_KEYS),))

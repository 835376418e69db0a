"""Every verb, by every caller, on its own namespace and on another's: over gRPC and REST."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest

from embstore import commands as c
from embstore.errors import (
    CheckpointNotFoundError,
    EmbstoreError,
    InvalidArgumentError,
    PermissionDeniedError,
    SessionExpiredError,
    UnauthenticatedError,
)
from embstore_proto.verbs import JSON_VERBS, VERBS
from embstore_server.transports.rest.app import make_rest
from tests.service.access import samples
from tests.service.access.samples import NEEDED, may, sample
from tests.service.access.tenants import SPACES, TENANTS, Caller, serving, token_of
from tests.serving import Server, on_loop

OF_A_SESSION = {verb for verb in NEEDED if "member" in c.COMMANDS[verb].__annotations__} | {
    "JoinSession",
    "EndSession",
}
_REFUSED_FOR_ANOTHER_REASON = {
    "PutStepRows": InvalidArgumentError,  # steps are announced
    "ReadStep": InvalidArgumentError,  # the trainer of the session waits
    **dict.fromkeys(  # the store is no shard
        ["SetShardMap", "PauseWrites", "ResumeWrites"], InvalidArgumentError
    ),
    "ReadScan": SessionExpiredError,  # nobody has opened it
    "SetRetention": CheckpointNotFoundError,  # nobody has made it
}


def test_every_verb_has_a_row():
    assert sorted(NEEDED) == sorted(c.COMMANDS) == sorted(VERBS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patched, serving(path) as server:
        patched.chdir(path)  # where backups go
        server.on_engine(lambda store: store.set_retention("first", "protected"))
        yield server


@pytest.fixture
def server(served: Server) -> Iterator[Server]:
    """The server of all cases, as it was at first."""
    yield served
    end_sessions(served)
    served.on_engine(lambda store: store.restore("first"))


def state(server: Server) -> Any:
    """Return what no refused call may change."""

    def found(store: Any) -> Any:
        tables = {name: store.table(name).digest() for name in store.tables()}
        return store.executor.tables.frame.command_number, tables, store.checkpoints()

    return server.on_engine(found)


def session_of(server: Server, verb: str, name: str, space: str) -> None:
    """Open the session that a sample names: the caller's own, where it may have one."""
    if verb in OF_A_SESSION:
        owner = name if may("OpenSession", TENANTS[name], space) else "operator"
        with Caller(server.address, token_of(owner)) as caller:
            caller.open_session(space)


def end_sessions(server: Server) -> None:
    sessions = server.store.executor.sessions
    for one in sessions.stats()["open"]:
        server.on_engine(lambda store, name=one["name"]: store.executor.sessions.end(name))


def is_denied(verb: str, error: Exception) -> bool:
    """Tell whether a call was denied; of a session by another's name, that there is none."""
    if verb in ("JoinSession", "EndSession") and isinstance(error, SessionExpiredError):
        return True
    return isinstance(error, PermissionDeniedError)


@pytest.mark.parametrize("verb", sorted(NEEDED))
def test_grpc(server, verb):
    streamed = [False, True] if VERBS[verb].has_twin else [False]
    with Caller(server.address) as nobody, pytest.raises(UnauthenticatedError):
        nobody.execute(sample(verb, "a"))
    with Caller(server.address, "writer.wrong") as nobody, pytest.raises(UnauthenticatedError):
        nobody.execute(sample(verb, "a"))
    allowed = []
    for name, rights in TENANTS.items():
        for space in SPACES:
            if may(verb, rights, space):
                allowed.append((name, space))
                continue
            session_of(server, verb, name, space)
            before = state(server)
            with Caller(server.address, token_of(name)) as caller:
                for is_streamed in streamed:
                    with pytest.raises(EmbstoreError) as caught:
                        caller.execute(sample(verb, space), streamed=is_streamed)
                    assert is_denied(verb, caught.value), (name, space, caught.value)
            assert state(server) == before
            end_sessions(server)
    assert ("operator", "a") in allowed
    first: dict[str, Any] = {}
    for name, space in allowed:
        session_of(server, verb, name, space)
        with Caller(server.address, token_of(name)) as caller:
            try:
                caller.execute(sample(verb, space))
            except EmbstoreError as exc:
                assert not isinstance(exc, PermissionDeniedError | UnauthenticatedError)
                first.setdefault(space, exc)
            else:
                first.setdefault(space, None)
        end_sessions(server)
    expected = _REFUSED_FOR_ANOTHER_REASON.get(verb)
    assert [e if e is None else type(e) for e in first.values()] == [expected] * len(first)


@pytest.mark.parametrize("verb", JSON_VERBS)
def test_rest(server, verb):
    def posted(name: str | None, space: str) -> int:
        token = {} if name is None else {"authorization": f"Bearer {token_of(name)}"}
        body = VERBS[verb].outgoing(sample(verb, space)).head
        return on_loop(_posted(server, verb, body, token))

    assert posted(None, "a") == 401
    for name, rights in TENANTS.items():
        for space in SPACES:
            is_allowed = may(verb, rights, space)
            session_of(server, verb, name, space)
            before = None if is_allowed else state(server)
            status = posted(name, space)
            if is_allowed:
                assert status not in (401, 403), (name, space)
            else:
                assert status == 403 or (status, verb) in (
                    (409, "JoinSession"),
                    (409, "EndSession"),
                ), (name, space)
                assert state(server) == before
            end_sessions(server)


async def _posted(server: Server, verb: str, body: Any, headers: dict[str, str]) -> int:
    from google.protobuf import json_format

    async with _rest(server) as client:
        answer = await client.post(
            f"/api/v1/commands/{verb}",
            content=json_format.MessageToJson(body),
            headers={"content-type": "application/json"} | headers,
        )
        return answer.status_code


_application = cache(make_rest)


def _rest(server: Server) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(_application(server.service))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


ROUTES = {
    "GetHealth": None,
    "GetReadiness": None,
    "GetMetrics": samples.READ_ALL,
    "GetServer": samples.READ_ALL,
    "GetStats": samples.READ_ALL,
    "GetCalls": samples.READ_ALL,
    "GetHitRates": samples.READ_ALL,
    "ListSessions": samples.READ_ALL,
    "GetFrequency": samples.READ_ALL,
    "ListTables": samples.ANYONE,
    "GetTableStats": samples.READ,
    "GetTable": samples.READ,
    "ListCheckpoints": samples.ANYONE,
    "WarmCache": samples.ADMIN_ALL,
    "GetWarming": samples.READ_ALL,
    "ExportProfile": samples.READ_ALL,
    "ImportProfile": samples.ADMIN_ALL,
    "GetHotSet": samples.READ_ALL,
    "PinHotSet": samples.ADMIN_ALL,
}
"""What each route beside the commands needs; None: nothing, so that probes need no token."""
_FIRST = {samples.ANYONE: "nothing", samples.READ: "reader", samples.WRITE: "writer"}
_FIRST |= {samples.ADMIN: "owner", samples.READ_ALL: "dashboard", samples.ADMIN_ALL: "operator"}


def test_every_other_route(server):
    paths = _application(server.service).openapi()["paths"]
    routes = {
        one["operationId"]: (method, path)
        for path, methods in paths.items()
        if not path.startswith("/api/v1/commands/")
        for method, one in methods.items()
    }
    assert sorted(routes) == sorted(ROUTES)
    profile: Any = sample("ImportProfile", "a")
    hot_set: Any = sample("PinHotSet", "a")
    files = {"ImportProfile": profile.profile, "PinHotSet": hot_set.hot_set}

    async def statuses(name: str, callers: list[str | None]) -> list[int]:
        method, path = routes[name]
        file = files.get(name)
        kind = "application/json" if file is None else "application/octet-stream"
        found = []
        async with _rest(server) as client:
            for caller in callers:
                token = {} if caller is None else {"authorization": f"Bearer {token_of(caller)}"}
                answer = await client.request(
                    method,
                    path.replace("{name}", "a%2Ft"),
                    headers={"content-type": kind} | token,
                    content=b"{}" if file is None else file.to_bytes(),
                )
                found.append(answer.status_code)
        return found

    for name, needed in ROUTES.items():
        callers = list(TENANTS)
        found = dict(zip([None, *callers], on_loop(statuses(name, [None, *callers])), strict=True))
        if needed is None:
            assert set(found.values()) == {200}, name
            continue
        assert found[None] == 401, name
        for caller in callers:
            rights = TENANTS[caller]
            is_denied = found[caller] == 403
            assert is_denied != _suffices(rights, needed), (name, caller, found[caller])
        assert found[_FIRST[needed]] not in (401, 403)


def _suffices(rights: dict[str, str], needed: int) -> bool:
    verb = next(verb for verb, level in NEEDED.items() if level == needed)
    return may(verb, rights, "a")

"""Every verb of plain messages by its JSON: over REST, and by `embstore call`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format

from embstore_proto.verbs import JSON_VERBS, VERBS
from embstore_server.cli import exits
from embstore_server.transports.rest.app import make_rest
from tests.service.access.samples import sample
from tests.service.access.tenants import SPACES, Caller, serving
from tests.service.access.test_matrix import OF_A_SESSION
from tests.service.faults.served import Served
from tests.service.rest import BASE, Rest
from tests.serving import on_loop

OTHERS = sorted(VERBS.keys() - JSON_VERBS.keys())
OF_SHARDS = {"SetShardMap", "PauseWrites", "ResumeWrites"}
ANSWERED = sorted(JSON_VERBS.keys() - OF_SHARDS)  # which a store refuses that is no shard


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server of what samples of commands are about, which knows nobody."""
    monkeypatch.chdir(tmp_path)  # where backups go
    with serving(tmp_path, tokens=None) as server:
        for space in SPACES:
            server.on_engine(lambda store, space=space: store.checkpoint(f"{space}/kept"))
        yield server


def check_reply(name: str, found: Any, store_id: str) -> None:
    """Check that JSON is the whole reply of a verb."""
    reply = json_format.ParseDict(found, VERBS[name].reply())
    assert reply.context.store_id == store_id
    always = {f.name for f in reply.DESCRIPTOR.fields if not f.has_presence}
    assert always <= found.keys() <= set(reply.DESCRIPTOR.fields_by_name)
    assert VERBS[name].answer(reply.SerializeToString()).context.command == reply.context.command


@pytest.mark.parametrize("name", ANSWERED)
def test_a_verb_is_called_over_rest_and_by_the_command_line(name, server, typed):
    if name in OF_A_SESSION:
        with Caller(server.address) as caller:
            for space in SPACES:
                caller.open_session(space)
    rest, shell = (
        json_format.MessageToJson(VERBS[name].outgoing(sample(name, space)).head)
        for space in SPACES
    )

    before = server.answered(name, "OK")

    async def called() -> None:
        transport = httpx.ASGITransport(make_rest(server.service))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            by_rest = Rest(server.service, client)
            path = f"/api/v1/commands/{name}"
            check_reply(name, await by_rest.post(path, json.loads(rest)), server.store.store_id)
            calls = (await by_rest.get("/api/v1/stats"))["verbs"][name]
            assert calls["codes"]["OK"] == before + 1 and calls["sent_bytes"] > 0
            refused = await by_rest.post(path, {"no_such_field": 1}, 400)
            assert refused["error"] == "InvalidArgumentError"
            assert f"{name}Request" in refused["message"]

    on_loop(called())
    words = [] if shell == "{}" else [shell]
    check_reply(name, typed("call", name, *words).document, server.store.store_id)


async def test_a_verb_without_json_is_refused_over_rest(rest):
    for name in OTHERS:
        told = await rest.post(f"/api/v1/commands/{name}", {}, 400)
        assert told["message"].startswith(f"{name} carries arrays")


def test_a_verb_without_json_is_refused_by_the_command_line(typed):
    for name in OTHERS:
        ended = typed("call", name)
        assert (ended.status, ended.out) == (exits.USAGE, "")
        assert f"{name} carries arrays" in ended.err


async def test_what_is_no_json_of_the_request_is_refused(rest):
    headers = {"content-type": "application/json"}
    path = "/api/v1/commands/GetTable"
    for text in (b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"table": 7}'):
        answer = await rest.client.post(path, content=text, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (400, "InvalidArgumentError")


async def test_errors_are_those_of_the_verb_over_rest(rest):
    told = await rest.post("/api/v1/commands/GetTable", {"table": "nope"}, 404)
    assert told["error"] == "TableNotFoundError"
    await rest.post("/api/v1/commands/Nothing", {}, 404)


def test_errors_are_those_of_the_verb_by_the_command_line(typed):
    assert typed("call", "GetTable", '{"table": "nope"}').status == exits.NOT_FOUND
    assert typed("call", "Nothing").status == exits.USAGE


async def test_a_call_with_an_origin_is_applied_once(rest):
    origin = {"client_id": "operator", "sequence": 1}
    body = {"origin": origin, "table": "ads", "rows": 2000}
    first, again = [await rest.post("/api/v1/commands/GrowTable", body) for _ in range(2)]
    assert first == again

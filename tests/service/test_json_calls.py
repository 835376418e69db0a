"""Every verb of plain messages by its JSON: over REST, and by `embstore call`."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from embstore_proto.verbs import JSON_VERBS, VERBS
from embstore_server.cli import exits
from tests.service.rest import Rest
from tests.service.shell import Shell
from tests.serving import Server

CONFIG = {"name": "new", "dim": 4, "rows": "9", "sgd": {"learning_rate": 0.5}, "constant": {}}
SESSION = {"name": "job", "tables": ["ads"]}
MEMBER = "0123456789abcdef"
SCAN = {"scan": MEMBER, "table": "ads"}
JOINED = [("OpenSession", SESSION), ("JoinSession", {"name": "job", "member": MEMBER})]
REQUESTS: dict[str, dict[str, Any]] = {
    "GetStats": {"table": "ads"},
    "ResizeCache": {"cache_bytes": 1 << 21},
    "SetPolicy": {"policy": "lfu"},
    "CreateTable": {"config": CONFIG},
    "GetTable": {"table": "ads"},
    "DropTable": {"table": "ads"},
    "GrowTable": {"table": "ads", "rows": 5000},
    "SetLearningRate": {"table": "ads", "learningRate": 0.5},
    "GetDigest": {"table": "ads"},
    "GetLeaves": {"table": "ads"},
    "Checkpoint": {"label": "one", "metadata_json": '{"step": 1}'},
    "SetRetention": {"label": "kept", "retention": "RETENTION_PROTECTED"},
    "Restore": {"label": "kept"},
    "Backup": {"destination": "backups"},
    "OpenScan": SCAN,
    "CloseScan": SCAN,
    "OpenSession": SESSION,
    "JoinSession": JOINED[1][1],
    "RenewLease": {"member": MEMBER},
    "CloseSession": {"member": MEMBER},
    "EndSession": {"name": "job"},
}
"""By verb; of the others, no field is needed."""
BEFORE = {
    "Restore": [("Checkpoint", {"label": "kept"})],
    "SetRetention": [("Checkpoint", {"label": "kept"})],
    "JoinSession": JOINED[:1],
    "RenewLease": JOINED,
    "CloseSession": JOINED,
    "EndSession": JOINED[:1],
}
"""What is called before a verb."""
OTHERS = sorted(VERBS.keys() - JSON_VERBS.keys())
OF_SHARDS = {"SetShardMap", "PauseWrites", "ResumeWrites"}
ANSWERED = sorted(JSON_VERBS.keys() - OF_SHARDS)  # which a store refuses that is no shard


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check_reply(name: str, found: Any, store_id: str) -> None:
    """Check that JSON is the whole reply of a verb."""
    reply = json_format.ParseDict(found, VERBS[name].reply())
    assert reply.context.store_id == store_id
    always = {f.name for f in reply.DESCRIPTOR.fields if not f.has_presence}
    assert always <= found.keys() <= set(reply.DESCRIPTOR.fields_by_name)
    assert VERBS[name].answer(reply.SerializeToString()).context.command == reply.context.command


@pytest.mark.parametrize("name", ANSWERED)
async def test_a_verb_is_called_over_rest(name: str, rest: Rest) -> None:
    for before, body in BEFORE.get(name, []):
        await rest.post(f"/api/v1/commands/{before}", body)
    found = await rest.post(f"/api/v1/commands/{name}", REQUESTS.get(name, {}))
    check_reply(name, found, rest.service.store.store_id)
    calls = (await rest.get("/api/v1/stats"))["verbs"][name]
    assert (calls["codes"]["OK"], calls["sent_bytes"] > 0) == (1, True)
    refused = await rest.post(f"/api/v1/commands/{name}", {"no_such_field": 1}, 400)
    assert refused["error"] == "InvalidArgumentError"
    assert f"{name}Request" in refused["message"]


@pytest.mark.parametrize("name", ANSWERED)
def test_a_verb_is_called_by_the_command_line(name: str, server: Server, typed: Shell) -> None:
    for before, body in BEFORE.get(name, []):
        assert typed("call", before, json.dumps(body)).status == exits.OK
    words = [json.dumps(REQUESTS[name])] if name in REQUESTS else []
    check_reply(name, typed("call", name, *words).document, server.store.store_id)


def test_what_is_called_by_json_is_done_and_counted(server: Server, typed: Shell) -> None:
    before = server.store.command
    made = typed("call", "CreateTable", json.dumps({"config": CONFIG})).document
    assert made["table"]["config"]["rows"] == "9"
    assert int(made["context"]["command"]) == server.store.command == before + 1
    assert server.store.table("new").dim == 4


async def test_a_verb_without_json_is_refused_over_rest(rest: Rest) -> None:
    for name in OTHERS:
        told = await rest.post(f"/api/v1/commands/{name}", {}, 400)
        assert told["message"].startswith(f"{name} carries arrays")


def test_a_verb_without_json_is_refused_by_the_command_line(typed: Shell) -> None:
    for name in OTHERS:
        ended = typed("call", name)
        assert (ended.status, ended.out) == (exits.USAGE, "")
        assert f"{name} carries arrays" in ended.err


async def test_what_is_no_json_of_the_request_is_refused(rest: Rest) -> None:
    headers = {"content-type": "application/json"}
    path = "/api/v1/commands/GetTable"
    for text in (b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"table": 7}'):
        answer = await rest.client.post(path, content=text, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (400, "InvalidArgumentError")


async def test_errors_are_those_of_the_verb_over_rest(rest: Rest) -> None:
    told = await rest.post("/api/v1/commands/GetTable", {"table": "nope"}, 404)
    assert told["error"] == "TableNotFoundError"
    await rest.post("/api/v1/commands/Nothing", {}, 404)


def test_errors_are_those_of_the_verb_by_the_command_line(typed: Shell) -> None:
    assert typed("call", "GetTable", '{"table": "nope"}').status == exits.NOT_FOUND
    assert typed("call", "Nothing").status == exits.USAGE


async def test_a_call_with_an_origin_is_applied_once(rest: Rest) -> None:
    origin = {"client_id": "operator", "sequence": 1}
    body = {"origin": origin, "table": "ads", "rows": 2000}
    first, again = [await rest.post("/api/v1/commands/GrowTable", body) for _ in range(2)]
    assert first == again

"""What the REST border refuses, and in which form: bodies, deadlines, mistakes, browsers."""

import json
import logging
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest

from embstore.errors import EmbstoreError
from embstore_server.transports.rest.guard import BODY_BYTES_MAX
from tests.service.rest import BASE

# Refusals

CHECKPOINT = "/api/v1/commands/Checkpoint"
RESIZE = "/api/v1/commands/ResizeCache"
FLUSH = "/api/v1/commands/Flush"
WARM = "/api/v1/cache/warm"
BAD_BODIES = [
    (CHECKPOINT, {}, "label"),
    (CHECKPOINT, {"label": 7}, "label"),
    (CHECKPOINT, {"label": ""}, "label"),
    (CHECKPOINT, {"label": "one", "metadata_json": []}, "metadata_json"),
    (CHECKPOINT, {"label": "one", "metadata_json": "[]"}, "metadata"),
    (CHECKPOINT, {"label": "one", "labels": ["two"]}, "labels"),
    (CHECKPOINT, [], "CheckpointRequest"),
    (RESIZE, {"cache_bytes": "1GiB"}, "cache_bytes"),
    (RESIZE, {"cache_bytes": 1.5}, "cache_bytes"),
    (RESIZE, {"cache_bytes": True}, "cache_bytes"),
    (RESIZE, None, "cache_bytes"),
    (FLUSH, {"table": ["ads"]}, "table"),
    (FLUSH, {"tables": "ads"}, "tables"),
    (WARM, {"share": "0.5"}, "body.share"),
    (WARM, {"share": 2}, "body.share"),
    (WARM, {"shares": 0.5}, "body.shares: Extra"),
]


async def test_body_that_does_not_fit_is_refused(rest):
    for path, body, said in BAD_BODIES:
        told = await rest.post(path, body, 400)
        assert told["error"] == "InvalidArgumentError"
        assert said in told["message"], (path, body)
    samples = await rest.samples()
    codes = [count for name, count in samples.items() if "{INVALID_ARGUMENT}" in name]
    assert sum(codes) == len(BAD_BODIES), "they count among the calls"


BAD_NUMBER, DEEP = b'{"label": NaN}', b'{"label":' + b"[" * 200_000


async def test_body_that_is_no_json_is_refused(rest):
    for content in (b"{", b"\xff", BAD_NUMBER, DEEP):
        for path in (CHECKPOINT, WARM):
            headers = {"content-type": "application/json"}
            answer = await rest.client.post(path, content=content, headers=headers)
        assert answer.status_code == 400, content[:20]
        assert answer.json()["error"] == "InvalidArgumentError"


async def test_large_body_is_refused(rest):
    headers = {"content-type": "application/json"}

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * (BODY_BYTES_MAX // 8)

    for content in (b" " * (BODY_BYTES_MAX + 1), pieces()):
        answer = await rest.client.post(FLUSH, content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"] == "InvalidArgumentError"
    fits = b'{"table": "ads"}'.ljust(BODY_BYTES_MAX)
    answer = await rest.client.post(FLUSH, content=fits, headers=headers)
    assert answer.status_code == 200


async def test_unknown_route_and_method_have_our_form(rest):
    for path in ("/none", "/api/v1/none", "/docs", "/api/v1/stats/"):
        told = await rest.get(path, 404)
        assert told.keys() == {"error", "message", "request"}
    told = await rest.post("/api/v1/stats", {}, 405)
    assert told["error"] == "InvalidArgumentError"
    answer = await rest.client.delete("/api/v1/checkpoints")
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"] or "POST" in answer.headers["allow"]


async def test_no_name_is_not_all_tables(rest):
    told = await rest.get("/api/v1/tables//stats", 404)
    assert told["error"] == "TableNotFoundError"


async def test_our_own_mistake_is_logged_and_answered_without_its_text(rest, monkeypatch, caplog):
    def broken(engine: Any) -> Any:
        raise RuntimeError("a secret")

    monkeypatch.setattr("embstore.engine.admin.store_stats", broken)
    with caplog.at_level(logging.ERROR, "embstore"):
        for path in ("/api/v1/stats", "/metrics"):
            told = await rest.get(path, 500)
            assert (told["error"], told["message"]) == ("InternalError", "internal error")
        told = await rest.get("/api/v1/server")
    assert told["service"]["ready"], "one call failed, and no more"
    assert [r.getMessage() for r in caplog.records] == ["internal error"] * 2
    assert "a secret" in caplog.text


async def test_memory_that_runs_out_is_no_mistake_of_ours(rest, monkeypatch, caplog):
    def broken(engine: Any) -> Any:
        return bytearray(1 << 62)

    monkeypatch.setattr("embstore.engine.admin.store_stats", broken)
    with caplog.at_level(logging.WARNING, "embstore"):
        told = await rest.get("/api/v1/stats", 507)
    assert told["error"] == "CapacityError"
    assert "no memory" in told["message"]
    assert [r.getMessage() for r in caplog.records] == ["no memory"]
    monkeypatch.undo()
    assert (await rest.get("/api/v1/stats"))["service"]["ready"], "it only read"


async def test_memory_that_runs_out_after_a_change_leaves_its_outcome_unknown(rest, monkeypatch):
    def broken(*_: Any, **__: Any) -> Any:
        return bytearray(1 << 62)

    monkeypatch.setattr("embstore_proto.verbs.Verb.reply_json", broken)
    told = await rest.post(CHECKPOINT, {"label": "one"}, 500)
    assert told["error"] == "OutcomeUnknownError"
    monkeypatch.undo()
    assert [c["label"] for c in (await rest.get("/api/v1/checkpoints"))["checkpoints"]] == ["one"]


async def test_a_mistake_is_logged_also_where_look_ahead_tells_it_to_a_session(
    rest, monkeypatch, caplog
):
    def broken(engine: Any) -> Any:
        raise EmbstoreError("look-ahead failed: a secret")

    monkeypatch.setattr("embstore.engine.admin.store_stats", broken)
    with caplog.at_level(logging.ERROR, "embstore"):
        told = await rest.get("/api/v1/stats", 500)
    assert told["message"] == "internal error"
    assert "a secret" in caplog.text


TIMEOUTS = "X_Request_Timeout", "X_Prometheus_Scrape_Timeout_Seconds"


@pytest.mark.rest(call_timeout_s=0.2)
async def test_deadline_is_kept_and_shortened_by_a_header(rest):
    async with rest.busy_engine():
        for header in TIMEOUTS:
            told = await rest.get("/api/v1/stats", 504, **{header: "0.05"})
            assert told["error"] == "DeadlineError"
        told = await rest.get("/api/v1/tables", 504, X_Request_Timeout="60")
        assert told["error"] == "DeadlineError"
        assert rest.service.worker.waiting_calls == 0


async def test_timeout_that_is_none_is_refused(rest):
    for header in TIMEOUTS:
        for text in ("0", "-1", "nan", "inf", "soon", ""):
            told = await rest.get("/api/v1/stats", 400, **{header: text})
            assert header.replace("_", "-") in told["message"]


@pytest.mark.rest(queue_calls_max=1)
async def test_full_queue_is_answered_503(rest):
    async with rest.busy_engine():
        waiting = rest.service.worker.submit(
            "Test", lambda store: None, client="test", deadline=monotonic() + 300
        )
        told = await rest.get("/api/v1/stats", 503)
        assert told["error"] == "OverloadedError"
        assert (await rest.samples())["embstore_queue_calls"] == 1
    await waiting.outcome


async def test_request_keeps_its_id_or_gets_one(rest):
    told = await rest.get("/api/v1/tables/none", 404, X_Request_Id="trainer-7.step:3")
    assert told["request"] == "trainer-7.step:3"
    answer = await rest.client.get("/healthz", headers={"x-request-id": "trainer-7"})
    assert answer.headers["x-request-id"] == "trainer-7"
    for unfit in ("a b", "x" * 65, 'a"', ""):
        told = await rest.get("/api/v1/none", 404, X_Request_Id=unfit)
        assert told["request"] != unfit
        assert len(told["request"]) == 16


# Browsers


async def test_loopback_answers_only_to_its_own_names(rest):
    for host in ("evil.example", "evil.example:8080", "10.0.0.1", "localhost.evil"):
        for path in ("/healthz", "/metrics", "/api/v1/tables"):
            told = await rest.get(path, 403, Host=host)
            assert told["error"] == "PermissionDeniedError"
    for host in ("localhost", "LOCALHOST:1", "127.1.2.3:80", "[::1]:8080", "localhost.", ""):
        await rest.get("/api/v1/tables", Host=host)


async def test_a_host_that_is_no_name_and_no_address_is_refused(rest):
    for host in ("[::1].evil.com", "[::1", "::1", "127.0.0.1:1@evil.com", "localhost:80:80", "[]"):
        await rest.get("/healthz", 403, Host=host)
    strange = ("localhost..", ".", ".localhost", "-", "127.0.0.1.", "[127.0.0.1]", "[1:2]")
    for host in (*strange, "localhost:99999", "a@localhost", "localhost, localhost", "[::1%lo]"):
        await rest.get("/healthz", 403, Host=host)


async def test_a_body_of_two_lengths_is_refused(rest):
    both = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    answer = await rest.client.post("/api/v1/tables/ads/flush", content=b"{}", headers=both)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")


FOREIGN_HOSTS = ("evil.example", "evil.example:80", "a.local.evil", "127.0.0.1.nip.example")


@pytest.mark.rest(admin="0.0.0.0:8080", insecure=True)
async def test_other_addresses_answer_to_names_of_their_own_network(rest):
    """A page at a public name may have it resolve to this machine."""
    own = ("embstore:8080", "10.0.0.1", "[fe80::1]:8080", "a.svc.cluster.local.", "a.internal:1")
    for host in (*own, "localhost"):
        await rest.get("/api/v1/tables", Host=host)
    for host in FOREIGN_HOSTS:
        told = await rest.get("/api/v1/tables", 403, Host=host, Origin=f"http://{host}")
        assert "allowed_hosts" in told["message"]
    told = await rest.get("/api/v1/tables", 403, Host="embstore", Origin="http://evil.example")
    assert "Origin" in told["message"]


@pytest.mark.rest(admin="0.0.0.0:8080", insecure=True, allowed_hosts=("Store.example", "*.b.c"))
async def test_further_names_are_allowed_by_a_setting(rest):
    for host in ("store.example:8080", "a.b.c", "10.0.0.1", "embstore.training.svc"):
        await rest.get("/api/v1/tables", Host=host)
    for host in (*FOREIGN_HOSTS, "b.c", "a.store.example"):
        await rest.get("/api/v1/tables", 403, Host=host)


@pytest.mark.rest(admin="0.0.0.0:8080", insecure=True, allowed_hosts=("*",))
async def test_any_name_can_be_allowed(rest):
    for host in FOREIGN_HOSTS:
        await rest.get("/api/v1/tables", Host=host)


async def test_only_a_page_of_its_own_origin_is_answered(rest):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9090", ""):
        told = await rest.post(CHECKPOINT, {"label": "one"}, 403, Origin=origin)
        assert told["error"] == "PermissionDeniedError"
    assert (await rest.get("/api/v1/checkpoints"))["checkpoints"] == []
    await rest.post(CHECKPOINT, {"label": "one"}, Origin=BASE)


async def test_body_not_declared_json_is_refused(rest):
    forms = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
    for declared in (*forms, "", None):
        headers = {} if declared is None else {"content-type": declared}
        content = json.dumps({"label": "one"}).encode()
        answer = await rest.client.post(CHECKPOINT, content=content, headers=headers)
        assert answer.status_code == 415
        assert answer.json()["error"] == "InvalidArgumentError"
        if declared:  # a form without fields
            answer = await rest.client.post(FLUSH, headers=headers)
            assert answer.status_code == 415

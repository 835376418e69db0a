"""Every route of REST, over a real store and engine thread."""

import json
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import Sgd, Uniform
from embstore.config import Limits
from embstore.errors import StorageError
from embstore.results import ServerLimits
from tests.service.rest import Rest, unopened

PATHS = "/api/v1/server", "/api/v1/stats", "/api/v1/tables"
DOCUMENTS = "/api/v1/profile", "/api/v1/hot-set"
OF_A_STORE = {
    *("embstore_epoch", "embstore_command", "embstore_running_calls", "embstore_device_info"),
    *("embstore_stats_age_seconds", "embstore_cache_budget_bytes", "embstore_memory_bytes"),
}
"""Metrics of an open store alone."""

# Probes


async def test_health_and_readiness_follow_the_store(tmp_path, runner):
    async with unopened(tmp_path / "store") as (rest, opening):
        assert await rest.get("/healthz") == {"status": "ok"}
        told = await rest.get("/readyz", 503)
        assert told == {"ready": False, "reason": "starting: the store is being opened"}
        await opening()
        assert await rest.get("/readyz") == {"ready": True, "reason": ""}
        rest.service.stopping = True
        assert await rest.get("/readyz", 503) == {"ready": False, "reason": "stopping"}
        assert await rest.get("/healthz") == {"status": "ok"}
        await rest.stop()


async def test_before_the_store_is_open_calls_are_refused_and_scrapes_answered(tmp_path, runner):
    async with unopened(tmp_path / "store") as (rest, opening):
        for path in (*PATHS, "/api/v1/frequency", "/api/v1/cache/warm", *DOCUMENTS):
            told = await rest.get(path, 503)
            assert told["error"] == "StoreClosedError"
            assert "starting" in told["message"]
        for path in DOCUMENTS:
            await rest.put(path, b"x", 503)
        await rest.post("/api/v1/cache/warm", {}, 503)
        samples = await rest.samples()
        assert samples["embstore_ready"] == 0
        assert not {name.partition("{")[0] for name in samples} & OF_A_STORE
        await opening()
        await rest.get("/api/v1/stats")
        await rest.stop()


async def test_failed_store_is_not_ready_but_told(rest):
    before = await rest.samples()
    rest.service.store.executor.storage.fail(StorageError(5, "the disk said no"))
    assert "the disk said no" in (await rest.get("/readyz", 503))["reason"]
    assert (await rest.get("/api/v1/stats", 503))["error"] == "StoreClosedError"
    told = await rest.get("/api/v1/server")
    reason = told["service"]["reason"]
    assert (told["service"]["ready"], "the disk said no" in reason) == (False, True)
    after = await rest.samples()
    assert after["embstore_ready"] == 0
    assert after["embstore_epoch"] == before["embstore_epoch"]
    assert after["embstore_table_rows{ads}"] == 1000
    assert after["embstore_stats_age_seconds"] > before["embstore_stats_age_seconds"]


async def test_counters_of_a_scrape_grow_by_what_was_done(rest):
    await rest.on_engine(lambda store: store.table("ads").lookup([1, 2]))
    before = await rest.samples()
    await rest.on_engine(lambda store: store.table("ads").lookup([1, 2, 2, 7]))
    await rest.post("/api/v1/commands/Checkpoint", {"label": "one"})
    await rest.get("/api/v1/tables/none", 404)
    after = await rest.samples()
    pool = "{8}{rowwise_adagrad}"

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown(f"embstore_pool_accesses_total{pool}") == 4
    assert grown("embstore_calls_total{OK}{Checkpoint}") == 1
    assert grown("embstore_calls_total{NOT_FOUND}{GetTable}") == 1
    assert grown("embstore_calls_total{OK}{GetMetrics}") == 1
    assert grown("embstore_engine_seconds_count{Checkpoint}") == 1
    assert grown("embstore_received_bytes_total{Checkpoint}") == len('{"label":"one"}')
    assert grown("embstore_sent_bytes_total{Checkpoint}") > 100
    assert grown("embstore_checkpoints") == 1
    assert after["embstore_queue_calls"] == 0
    assert after["embstore_build_info" + "".join(map("{{{}}}".format, _build(rest)))] == 1


def _build(rest: Rest) -> tuple[str, str, str]:
    return rest.service.instance, rest.service.store.store_id, embstore.__version__


async def test_scrape_while_the_engine_is_busy_tells_the_last_figures(rest):
    before = await rest.samples()
    async with rest.busy_engine():
        during = await rest.samples()
    assert during["embstore_table_rows{ads}"] == 1000
    assert during["embstore_running_calls{Digest}"] == 1
    assert during["embstore_stats_age_seconds"] > before["embstore_stats_age_seconds"]
    assert rest.service.worker.waiting_calls == 0
    assert during["process_resident_memory_bytes"] > 0


# What the server and the store are


async def test_server_tells_settings_limits_and_queue(rest):
    async with rest.busy_engine():
        told = await rest.get("/api/v1/server")
    service = rest.service
    assert told["version"] == embstore.__version__
    assert told["context"] == {
        "store_id": service.store.store_id,
        "epoch": 1,
        "command": 3,
        "instance": service.instance,
    }
    stats = told["service"]
    assert (stats["ready"], stats["reason"]) == (True, "")
    assert (stats["queue_calls"], stats["inflight_bytes"]) == (0, 0)
    assert stats["running_verb"] == "Digest"
    assert stats["uptime_s"] > 0
    assert (told["device"], told["policy"], told["cache_bytes"]) == ("cpu", "lru", 1 << 20)
    assert told["settings"] == service.settings.describe()
    assert told["limits"]["tables_max"] == service.store.limits.tables_max
    assert "rowwise_adagrad" in told["optimizers"]
    assert "uniform" in told["initializers"]


async def test_every_limit_of_the_proto_is_told(rest):
    from embstore_proto.v1 import embstore_pb2 as pb

    limits = (await rest.get("/api/v1/server"))["limits"]
    assert limits.keys() == {field.name for of in (Limits, ServerLimits) for field in fields(of)}
    assert limits.keys() >= {field.name for field in pb.ServerLimits.DESCRIPTOR.fields}


async def test_stats_are_those_of_the_store_and_of_the_process(rest):
    def use(store: embstore.Store) -> Any:
        ads = store.table("ads")
        ads.lookup([1, 2, 2, 3])
        ads.lookup([1, 1, 4])
        ads.update([1, 9], np.ones((2, 8), np.float32))
        return store.stats()

    stats = await rest.on_engine(use)
    await rest.get("/api/v1/tables")
    told = await rest.get("/api/v1/stats")
    own = {"context", "service", "memory", "owners", "transports", "verbs"}
    assert told.keys() == stats.keys() | own
    for name in ("tables", "storage", "policy", "read_only"):
        assert told[name] == stats[name]
    by_layout = {pool["optimizer"]: pool for pool in told["cache"]["pools"]}
    used, unused = by_layout["rowwise_adagrad"], by_layout["sgd"]
    assert (used["access_hit_rate"], used["unique_hit_rate"]) == (2 / 7, 0.2)
    assert unused["access_hit_rate"] is None
    ads = told["tables"]["ads"]
    assert (ads["t"], ads["resident_bytes"]) == (2, 5 * ads["row_bytes"])
    assert told["memory"]["process_resident_bytes"] > told["memory"]["cache_bytes"] > 0
    assert told["memory"]["cache_bytes"] == told["cache"]["memory_bytes"]
    assert told["service"]["queue_calls"] == 0
    listed = told["verbs"]["ListTables"]
    assert (listed["codes"], listed["received_bytes"]) == ({"OK": 1}, 0)
    for part in ("call", "wait", "engine"):
        latency = listed[part]
        assert latency["count"] == 1
        assert 0 <= latency["p50"] <= latency["p95"] <= latency["p99"]


# Tables


async def test_tables_are_listed_by_name(rest):
    told = await rest.get("/api/v1/tables")
    assert [table["name"] for table in told["tables"]] == ["ads", "ads/stats"]
    assert told["tables"][0] == {
        "name": "ads",
        "table_id": 0,
        "dim": 8,
        "rows": 1000,
        "key_space": "dense",
        "optimizer": told["tables"][0]["optimizer"],
        "initializer": {"kind": "uniform", "low": -1.0, "high": 1.0},
        "seed": 2**64 - 1,
        "state_dim": 1,
        "t": 1,
    }
    optimizer = told["tables"][0]["optimizer"]
    assert optimizer["kind"] == "rowwise_adagrad"
    assert optimizer["learning_rate"] == pytest.approx(0.1)
    assert told["context"]["command"] == 3


async def test_slash_of_a_name_may_be_written_either_way(rest):
    table = {"dim": 4, "rows": 9, "optimizer": Sgd(learning_rate=1), "initializer": Uniform(-1, 1)}
    await rest.on_engine(lambda store: store.create_table("a/b", **table))
    for name in ("a/b", "a%2Fb", "a%2fb", "%61/b"):
        assert (await rest.get(f"/api/v1/tables/{name}"))["table"]["rows"] == 9
        told = await rest.get(f"/api/v1/tables/{name}/stats")
        assert (told["name"], told["stats"]["rows"]) == ("a/b", 9)


async def test_table_called_stats_is_told_apart_by_its_slash(rest):
    told = await rest.get("/api/v1/tables/ads/stats")
    assert (told["name"], told["stats"]["rows"]) == ("ads", 1000)
    for path in ("ads%2Fstats", "ads%2fstats"):
        told = await rest.get(f"/api/v1/tables/{path}")
        assert (told["table"]["name"], told["table"]["rows"]) == ("ads/stats", 50)
    for path in ("ads/stats/stats", "ads%2Fstats/stats"):
        told = await rest.get(f"/api/v1/tables/{path}")
        assert (told["name"], told["stats"]["rows"]) == ("ads/stats", 50)


async def test_table_that_is_not_there_is_404(rest):
    for name in ("none", "none/stats", "", "ads/", "%252F", "%00", "%ff", "a%20b"):
        told = await rest.get(f"/api/v1/tables/{name}", 404)
        assert told["error"] == "TableNotFoundError"
        assert ("of a table is text" if name == "%00" else "list the tables") in told["message"]


# Durability and cache


async def test_checkpoint_is_made_and_listed(rest):
    assert (await rest.get("/api/v1/checkpoints"))["checkpoints"] == []
    metadata = {"step": 1, "dense": [1.5, None]}
    body = {"label": "step-1", "metadata_json": json.dumps(metadata)}
    made = await rest.post("/api/v1/commands/Checkpoint", body)
    assert made["checkpoint"]["command"] == made["context"]["command"] == "3"
    (checkpoint,) = (await rest.get("/api/v1/checkpoints"))["checkpoints"]
    assert (checkpoint["label"], checkpoint["command"]) == ("step-1", 3)
    assert checkpoint["metadata"] == metadata
    assert checkpoint["tables"] == 2
    again = await rest.post("/api/v1/commands/Checkpoint", body, 409)
    assert again["error"] == "CheckpointExistsError"


async def test_flush_writes_one_table_or_all(rest):
    def dirty(store: embstore.Store) -> None:
        store.table("ads").update([5], np.ones((1, 8), np.float32))
        store.table("ads/stats").update([6, 7], np.ones((2, 4), np.float32))

    await rest.on_engine(dirty)
    assert (await rest.post("/api/v1/commands/Flush", {"table": "ads/stats"}))["rows"] == "2"
    assert (await rest.post("/api/v1/commands/Flush"))["rows"] == "1"
    assert (await rest.post("/api/v1/commands/Flush", {}))["rows"] == "0"
    told = await rest.post("/api/v1/commands/Flush", {"table": "none"}, 404)
    assert told["error"] == "TableNotFoundError"


async def test_cache_is_resized(rest):
    await rest.post("/api/v1/commands/ResizeCache", {"cache_bytes": 1 << 21})
    assert (await rest.get("/api/v1/stats"))["cache"]["budget_bytes"] == 1 << 21
    assert (await rest.get("/api/v1/server"))["cache_bytes"] == 1 << 21
    told = await rest.post("/api/v1/commands/ResizeCache", {"cache_bytes": 0}, 400)
    assert told["error"] == "InvalidArgumentError"
    told = await rest.post("/api/v1/commands/ResizeCache", {"cache_bytes": 1}, 507)
    assert told["error"] == "CapacityError"


@pytest.mark.rest(read_only=True)
async def test_read_only_store_refuses_a_checkpoint(rest):
    told = await rest.post("/api/v1/commands/Checkpoint", {"label": "one"}, 403)
    assert told["error"] == "PermissionDeniedError"
    assert (await rest.get("/api/v1/server"))["read_only"] is True
    assert (await rest.get("/api/v1/stats"))["read_only"] is True


# HEAD: what GET answers, without the body


async def test_every_route_of_get_answers_head(rest):
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
        for name in ("etag", "content-length") if "etag" in found.headers else ():
            assert headed.headers[name] == found.headers[name]
        assert headed.headers["content-type"] == found.headers["content-type"]
        assert headed.headers["x-request-id"]


async def test_head_of_what_is_not_there_or_changes_something(rest):
    for path, status in (("/api/v1/none", 404), ("/api/v1/commands/Flush", 405)):
        answer = await rest.client.head(path)
        assert (answer.status_code, answer.content) == (status, b"")

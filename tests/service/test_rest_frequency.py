"""Profiles, hot sets and warm-up by REST, and the figures of all three in stats and metrics."""

from typing import Any

import pytest

from embstore.profiles.profile import Profile
from tests.service.frequency_samples import falling, hot_set_of, profile_of
from tests.service.rest import Rest

PROFILE = profile_of({"ads": falling(500)})
CONTENT = PROFILE.to_bytes()


# Profiles


async def test_a_profile_is_put_and_got_as_a_file(rest):
    done = await rest.put("/api/v1/profile", CONTENT)
    assert done["tables"] == {"ads": 500}
    assert done["context"]["store_id"]
    back = Profile.from_bytes(await rest.file("/api/v1/profile?source=imported"))
    assert back.tables["ads"].counts.tolist() == PROFILE.tables["ads"].counts.tolist()
    verbs = (await rest.get("/api/v1/stats"))["verbs"]
    assert verbs["ImportProfile"]["codes"] == {"OK": 1}
    assert verbs["ImportProfile"]["received_bytes"] == len(CONTENT)
    assert verbs["ExportProfile"]["sent_bytes"] > 500


@pytest.mark.rest(count_rate=1.0)
async def test_what_was_counted_is_got_by_default(rest):
    await rest.on_engine(lambda store: store.table("ads").lookup([1, 2, 2]))
    counted = Profile.from_bytes(await rest.file("/api/v1/profile")).tables["ads"]
    assert (counted.keys.tolist(), counted.counts.tolist()) == ([1, 2], [1, 2])


async def test_tables_are_renamed_in_the_query(rest):
    content = profile_of({"C1": falling(500)}).to_bytes()
    done = await rest.put("/api/v1/profile?rename=C1=ads", content)
    assert done["tables"] == {"ads": 500}


async def test_a_wrong_profile_changes_nothing(rest):
    await rest.put("/api/v1/profile", profile_of({"ads": {7: 1}}).to_bytes())
    for query, content, status in (
        ("", profile_of({"items": {1: 1}}).to_bytes(), 404),
        ("", b"", 400),
        ("?rename=C1", CONTENT, 400),
    ):
        await rest.put(f"/api/v1/profile{query}", content, status)
    figures = await rest.get("/api/v1/frequency")
    assert figures["tables"]["ads"]["profile_rows"] == 1
    refusal = await rest.get("/api/v1/profile?source=guessed", 400)
    assert "query.source" in refusal["message"]


async def test_a_document_must_be_declared_as_one(rest):
    """A page of another site may not send it without asking first (guard)."""
    content = CONTENT
    for declared in ("application/json", "text/plain"):
        refusal = await rest.put("/api/v1/profile", content, 415, content_type=declared)
        assert "application/octet-stream" in refusal["message"]
    await rest.put("/api/v1/profile", content, 403, origin="http://elsewhere.example")
    await rest.post("/api/v1/profile", {}, 405)


async def test_a_document_above_the_limit_is_refused_by_its_name(rest):
    limit = rest.service.store.limits.call_bytes_max
    for path in ("/api/v1/profile", "/api/v1/hot-set"):
        refusal = await rest.put(path, b"x", 400, content_length=str(limit + 1))
        assert "limits.call_bytes_max" in refusal["message"]
    assert rest.service.inflight.reserved_bytes == 0


async def test_a_document_may_be_larger_than_other_bodies(rest):
    refusal = await rest.put("/api/v1/profile", bytes(2 << 20), 400)
    assert "expected an embstore profile" in refusal["message"]


# Hot sets


async def test_a_hot_set_is_put_got_and_unpinned(rest):
    refusal = await rest.get("/api/v1/hot-set", 404)
    assert refusal["message"] == "no hot set is pinned"
    done = await rest.put("/api/v1/hot-set", hot_set_of(2, ads=[1, 5]).to_bytes())
    assert done["hot_set"] == {"version": 2, "rows": 2, "bytes": 0, "pinned_rows": 2}
    assert await rest.file("/api/v1/hot-set") == hot_set_of(2, ads=[1, 5]).to_bytes()
    refusal = await rest.put("/api/v1/hot-set", hot_set_of(1, ads=[1]).to_bytes(), 400)
    assert "version above 2" in refusal["message"]
    figures = await rest.get("/api/v1/frequency")
    assert figures["hot_set"]["version"] == 2
    gone = await rest.post("/api/v1/commands/UnpinHotSet")
    assert gone["hot_set"]["version"] == "0"
    await rest.get("/api/v1/hot-set", 404)


# Warming


async def warmed(rest: Rest) -> dict[str, Any]:
    """Follow the warm-up that runs to its end; return how it went."""
    running = rest.service.warming._last
    assert running is not None
    await running.done
    found: dict[str, Any] = (await rest.get("/api/v1/cache/warm"))["warming"]
    return found


@pytest.mark.rest(policy="rank")
async def test_the_cache_is_warmed_in_the_background(rest):
    none = (await rest.get("/api/v1/cache/warm"))["warming"]
    assert none == {"rows": 0, "of": 0, "running": False, "error": None}
    await rest.put("/api/v1/profile", CONTENT)
    begun = await rest.post("/api/v1/cache/warm", {"share": 0.9}, 202)
    assert begun["warming"]["running"]
    assert await warmed(rest) == {"rows": 500, "of": 500, "running": False, "error": None}
    await rest.post("/api/v1/cache/warm", status=202)
    assert (await warmed(rest))["rows"] == 500


@pytest.mark.parametrize("body", [{"share": 0}, {"share": 1.5}, {"share": "all"}, {"slots": 3}])
async def test_a_share_that_is_none_is_refused(rest, body):
    await rest.post("/api/v1/cache/warm", body, 400)


async def test_another_share_waits_for_the_end_of_the_one_that_runs(rest):
    await rest.put("/api/v1/profile", CONTENT)
    await rest.post("/api/v1/cache/warm", {"share": 0.5}, 202)
    await rest.post("/api/v1/cache/warm", {"share": 0.5}, 202)
    refusal = await rest.post("/api/v1/cache/warm", {"share": 0.25}, 503)
    assert refusal["error"] == "OverloadedError"
    await warmed(rest)
    await rest.post("/api/v1/cache/warm", {"share": 0.25}, 202)
    await warmed(rest)


# Figures

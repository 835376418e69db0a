"""Profiles, hot sets and warm-up by REST, and the figures of all three in stats and metrics."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile, TableProfile
from embstore_server.admin.frequency import Frequency
from tests.service.rest import Rest, filled, run, unopened


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a store with "ads" (1000 rows) and "ads/stats" (50)."""
    return filled(tmp_path / "store")


def profile_of(table: str = "ads", keys: Any = range(500), rows: int = 0) -> Profile:
    made = np.array(keys, np.int64)
    counts = 1000 - np.arange(len(made), dtype=np.int64)
    return Profile({table: TableProfile(table, rows, made, counts, int(counts.sum()))})


def hot_set_of(version: int = 1, **keys: Any) -> bytes:
    return HotSet({name: np.array(k, np.int64) for name, k in keys.items()}, version).to_bytes()


# Profiles


def test_a_profile_is_put_and_got_as_a_file(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        done = await rest.put("/api/v1/profile", profile_of().to_bytes())
        assert done["tables"] == {"ads": 500}
        assert done["context"]["store_id"]
        back = Profile.from_bytes(await rest.file("/api/v1/profile?source=imported"))
        assert back.tables["ads"].counts.tolist() == profile_of().tables["ads"].counts.tolist()
        verbs = (await rest.get("/api/v1/stats"))["verbs"]
        assert verbs["ImportProfile"]["codes"] == {"OK": 1}
        assert verbs["ImportProfile"]["received_bytes"] == len(profile_of().to_bytes())
        assert verbs["ExportProfile"]["sent_bytes"] > 500

    run(data, scenario)


def test_what_was_counted_is_got_by_default(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.on_engine(lambda store: store.table("ads").lookup([1, 2, 2]))
        counted = Profile.from_bytes(await rest.file("/api/v1/profile")).tables["ads"]
        assert (counted.keys.tolist(), counted.counts.tolist()) == ([1, 2], [1, 2])

    run(data, scenario, count_rate=1.0)


def test_tables_are_renamed_in_the_query(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        content = profile_of("C1").to_bytes()
        done = await rest.put("/api/v1/profile?rename=C1=ads", content)
        assert done["tables"] == {"ads": 500}

    run(data, scenario)


REFUSED_PROFILES: dict[str, tuple[str, bytes, int, str]] = {
    "of another table": ("", profile_of("items").to_bytes(), 404, "TableNotFoundError"),
    "with keys beyond the table": (
        "",
        profile_of(keys=[999, 1000]).to_bytes(),
        400,
        "InvalidArgumentError",
    ),
    "cut off": ("", profile_of().to_bytes()[:-9], 400, "InvalidArgumentError"),
    "another kind of file": ("", hot_set_of(ads=[1]), 400, "InvalidArgumentError"),
    "nothing": ("", b"", 400, "InvalidArgumentError"),
    "a rename that is none": ("?rename=C1", profile_of().to_bytes(), 400, "InvalidArgumentError"),
    "a rename of nothing": (
        "?rename=C1=ads",
        profile_of().to_bytes(),
        400,
        "InvalidArgumentError",
    ),
}


@pytest.mark.parametrize("case", REFUSED_PROFILES.values(), ids=REFUSED_PROFILES)
def test_a_wrong_profile_changes_nothing(data: Path, case: tuple[str, bytes, int, str]) -> None:
    query, content, status, error = case

    async def scenario(rest: Rest) -> None:
        await rest.put("/api/v1/profile", profile_of(keys=[7]).to_bytes())
        refusal = await rest.put(f"/api/v1/profile{query}", content, status)
        assert refusal["error"] == error
        figures = await rest.get("/api/v1/frequency")
        assert figures["tables"]["ads"]["profile_rows"] == 1

    run(data, scenario)


def test_a_source_that_is_none_is_refused(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        refusal = await rest.get("/api/v1/profile?source=guessed", 400)
        assert "query.source" in refusal["message"]

    run(data, scenario)


def test_a_document_must_be_declared_as_one(data: Path) -> None:
    """A page of another site may not send it without asking first (guard)."""

    async def scenario(rest: Rest) -> None:
        content = profile_of().to_bytes()
        for declared in ("application/json", "text/plain"):
            refusal = await rest.put("/api/v1/profile", content, 415, content_type=declared)
            assert "application/octet-stream" in refusal["message"]
        await rest.put("/api/v1/profile", content, 403, origin="http://elsewhere.example")
        await rest.post("/api/v1/profile", {}, 405)

    run(data, scenario)


def test_a_document_above_the_limit_is_refused_by_its_name(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        limit = rest.service.store.limits.call_bytes_max
        refusal = await rest.put("/api/v1/profile", b"x", 400, content_length=str(limit + 1))
        assert "limits.call_bytes_max" in refusal["message"]
        refusal = await rest.put("/api/v1/hot-set", b"x", 400, content_length=str(limit + 1))
        assert "limits.call_bytes_max" in refusal["message"]
        assert rest.service.inflight.held_bytes == 0

    run(data, scenario)


def test_a_document_may_be_larger_than_other_bodies(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        refusal = await rest.put("/api/v1/profile", bytes(2 << 20), 400)
        assert "expected an embstore profile" in refusal["message"]

    run(data, scenario)


def test_a_document_needs_room_in_flight(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        with rest.service.inflight.reservation() as held:
            held.add(16 << 20)
            refusal = await rest.put("/api/v1/profile", profile_of().to_bytes(), 503)
            assert refusal["error"] == "OverloadedError"
        await rest.put("/api/v1/profile", profile_of().to_bytes())

    run(data, scenario, inflight_bytes_max=16 << 20)


def test_nothing_is_served_before_the_store_is_open(data: Path) -> None:
    async def scenario() -> None:
        async with unopened(data) as (rest, _):
            for path in ("/api/v1/profile", "/api/v1/hot-set"):
                await rest.get(path, 503)
                await rest.put(path, b"x", 503)
            await rest.post("/api/v1/cache/warm", {}, 503)
            await rest.get("/api/v1/cache/warm", 503)
            await rest.get("/api/v1/frequency", 503)

    asyncio.run(scenario())


# Hot sets


def test_a_hot_set_is_put_got_and_deleted(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        refusal = await rest.get("/api/v1/hot-set", 404)
        assert refusal["message"] == "no hot set is pinned"
        done = await rest.put("/api/v1/hot-set", hot_set_of(2, ads=[1, 5]))
        assert done["hot_set"] == {"version": 2, "rows": 2, "bytes": 0, "pinned_rows": 2}
        assert await rest.file("/api/v1/hot-set") == hot_set_of(2, ads=[1, 5])
        refusal = await rest.put("/api/v1/hot-set", hot_set_of(1, ads=[1]), 400)
        assert "version above 2" in refusal["message"]
        await rest.put("/api/v1/hot-set", hot_set_of(3, items=[1]), 404)
        await rest.put("/api/v1/hot-set", hot_set_of(3, ads=[1000]), 400)
        await rest.put("/api/v1/hot-set", hot_set_of(3, ads=[1])[:-5], 400)
        figures = await rest.get("/api/v1/frequency")
        assert figures["hot_set"]["version"] == 2
        gone = await rest.delete("/api/v1/hot-set")
        assert gone["hot_set"]["version"] == 0
        await rest.get("/api/v1/hot-set", 404)

    run(data, scenario)


# Warming


async def warmed(rest: Rest) -> dict[str, Any]:
    """Follow the warm-up that runs to its end; return how it went."""
    running = rest.service.warming._last
    assert running is not None
    await running.done
    found: dict[str, Any] = (await rest.get("/api/v1/cache/warm"))["warming"]
    return found


def test_the_cache_is_warmed_in_the_background(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        none = (await rest.get("/api/v1/cache/warm"))["warming"]
        assert none == {"rows": 0, "of": 0, "running": False, "error": None}
        await rest.put("/api/v1/profile", profile_of().to_bytes())
        begun = await rest.post("/api/v1/cache/warm", {"share": 0.9}, 202)
        assert begun["warming"]["running"]
        assert await warmed(rest) == {"rows": 500, "of": 500, "running": False, "error": None}
        await rest.post("/api/v1/cache/warm", status=202)
        assert (await warmed(rest))["rows"] == 500

    run(data, scenario, policy="rank")


@pytest.mark.parametrize("body", [{"share": 0}, {"share": 1.5}, {"share": "all"}, {"slots": 3}])
def test_a_share_that_is_none_is_refused(data: Path, body: Any) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.post("/api/v1/cache/warm", body, 400)

    run(data, scenario)


def test_another_share_waits_for_the_end_of_the_one_that_runs(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.put("/api/v1/profile", profile_of().to_bytes())
        await rest.post("/api/v1/cache/warm", {"share": 0.5}, 202)
        await rest.post("/api/v1/cache/warm", {"share": 0.5}, 202)
        refusal = await rest.post("/api/v1/cache/warm", {"share": 0.25}, 503)
        assert refusal["error"] == "OverloadedError"
        await warmed(rest)
        await rest.post("/api/v1/cache/warm", {"share": 0.25}, 202)
        await warmed(rest)

    run(data, scenario)


# Figures


def test_figures_are_whole_before_anything_is_known(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        figures = await rest.get("/api/v1/frequency")
        Frequency.model_validate(figures)
        assert figures["count_rate"] == 0.0
        assert figures["tables"]["ads"] == {
            "distinct": 0,
            "accesses": 0,
            "error": 0,
            "is_exact": True,
            "profile_rows": 0,
        }
        assert figures["hot_set"]["version"] == 0

    run(data, scenario, count_rate=0.0)


def test_figures_and_metrics_follow_what_is_done(data: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.on_engine(lambda store: store.table("ads").lookup([1, 2, 2]))
        await rest.put("/api/v1/profile", profile_of().to_bytes())
        await rest.put("/api/v1/hot-set", hot_set_of(7, ads=[1, 2, 3]))
        await rest.post("/api/v1/cache/warm", {"share": 1.0}, 202)
        await warmed(rest)
        figures = await rest.get("/api/v1/frequency")
        assert (figures["counted_calls"], figures["counted_accesses"]) == (1, 3)
        assert (figures["recorded"]["calls"], figures["recorded"]["events"]) == (1, 2)
        assert figures["warming"]["rows"] == 500
        samples = await rest.samples()
        for name, value in (
            ("embstore_counted_calls_total", 1),
            ("embstore_counted_accesses_total", 3),
            ("embstore_count_rate", 1),
            ("embstore_table_counted_keys{ads}", 2),
            ("embstore_table_count_error{ads}", 0),
            ("embstore_table_profile_rows{ads}", 500),
            ("embstore_table_profile_rows{ads/stats}", 0),
            ("embstore_recorded_events", 2),
            ("embstore_warming_rows", 500),
            ("embstore_warming_of_rows", 500),
            ("embstore_warming_running", 0),
            ("embstore_hot_set_version", 7),
            ("embstore_hot_set_rows", 3),
            ("embstore_hot_set_pinned_rows", 3),
        ):
            assert samples[name] == value, name
        assert samples["embstore_frequency_memory_bytes"] > 0

    run(data, scenario, count_rate=1.0, policy="rank")

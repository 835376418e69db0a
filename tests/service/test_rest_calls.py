"""What the page asks for beside stats: times of calls, slow calls, hit rates at other sizes."""

import errno
from typing import Any

import numpy as np
import pytest

from embstore.cache.policies import POLICIES
from embstore.errors import EmbstoreError, StorageError
from embstore.handles.store import Store
from embstore_server.telemetry.metrics import BOUNDS
from embstore_server.telemetry.slow_calls import SLOW_CALLS_KEPT
from embstore_server.transports.rest.hit_rates import Predictions
from tests.service.rest import Rest


async def test_times_of_calls_are_histograms_that_add_up(rest):
    for _ in range(3):
        await rest.get("/api/v1/tables")
    found = await rest.get("/api/v1/calls")
    assert found["bounds"] == list(BOUNDS)
    times = found["verbs"]["ListTables"]
    assert {name: len(counts) for name, counts in times.items()} == dict.fromkeys(
        ("call", "wait", "engine"), len(BOUNDS) + 1
    )
    assert sum(times["call"]) == sum(times["engine"]) == 3
    assert "GetCalls" in (await rest.get("/api/v1/calls"))["verbs"]


async def test_times_of_calls_need_no_engine(rest):
    async with rest.busy_engine():
        assert (await rest.get("/api/v1/calls"))["slow_calls"] == []


@pytest.mark.rest(slow_call_ms=0.001)
async def test_slow_calls_are_kept_the_latest_first(rest):
    await rest.get("/api/v1/tables", x_request_id="first")
    await rest.get("/api/v1/tables/nope", 404, x_request_id="second", user_agent="somebody")
    latest, before, *_ = (await rest.get("/api/v1/calls"))["slow_calls"]
    assert (latest["verb"], latest["request"], latest["code"]) == (
        "GetTable",
        "second",
        "NOT_FOUND",
    )
    assert (latest["client"], before["request"]) == ("somebody", "first")
    assert latest["ended_at"] >= before["ended_at"] > 1e9
    assert latest["ms"] >= latest["run_ms"] > 0
    for _ in range(SLOW_CALLS_KEPT + 1):
        await rest.get("/api/v1/cache/warm")
    kept = (await rest.get("/api/v1/calls"))["slow_calls"]
    assert len(kept) == SLOW_CALLS_KEPT
    assert "first" not in [one["request"] for one in kept]


async def test_hit_rates_are_empty_where_nothing_was_counted(rest):
    found = await rest.get("/api/v1/hit-rates?wait=true")
    assert (found["curves"], found["policy"], found["predicting"]) == ([], "lru", False)


@pytest.mark.rest(count_rate=1.0)
async def test_hit_rates_grow_with_the_cache_and_have_the_present_size(rest):
    def look_up(store: Store) -> None:
        rng = np.random.default_rng(3)
        for _ in range(50):
            store.table("ads").lookup(rng.zipf(1.3, 200) % 1000)

    await rest.on_engine(look_up)
    at_once = await rest.get("/api/v1/hit-rates")
    assert (at_once["curves"], at_once["age_s"], at_once["predicting"]) == ([], None, True)
    found = await rest.get("/api/v1/hit-rates?wait=true")
    [curve] = found["curves"]
    assert (found["policy"], curve["tables"], curve["dim"]) == ("lru", ["ads"], 8)
    assert curve["slots"] == sorted(set(curve["slots"])) and curve["slots"][-1] == 1000
    assert curve["slots_now"] in curve["slots"]
    assert curve["cache_bytes"] == sorted(curve["cache_bytes"])
    assert curve["policies"].keys() == POLICIES.keys()
    for hits in curve["policies"].values():
        assert len(hits) == len(curve["slots"])
        assert 0 <= hits[0] <= hits[-1] <= 1
    assert curve["policies"]["lru"][-1] > 0.5
    again = await rest.get("/api/v1/hit-rates?wait=true")  # which is fresh
    assert again["age_s"] > found["age_s"] and not again["predicting"]


async def test_a_prediction_that_fails_is_logged_and_not_begun_again_at_once(rest, caplog):
    """Nobody waits for it, so nobody saw why, and each look at the page began another."""
    rest.service.store.executor.storage.fail(StorageError(errno.EIO, "the disk said no"))
    made = Predictions(rest.service)
    for _ in range(3):
        with pytest.raises(EmbstoreError):
            await made.refresh(wait=True)
    logged = [record for record in caplog.records if "not predicted" in record.getMessage()]
    assert len(logged) == 1


# When hit rates are predicted anew

HIT_RATES = "/api/v1/hit-rates?wait=true"


def made_at(rest: Rest) -> Any:
    """Return when the last prediction was made."""
    predictions: Predictions = rest.client._transport.app.state.predictions  # type: ignore[attr-defined]
    return predictions.made_at


async def test_a_store_that_has_counted_nothing_is_left_alone_for_a_while(rest):
    """Review: A page that looked every two seconds had all counts copied every two seconds."""
    assert (await rest.get(HIT_RATES))["curves"] == []
    first = made_at(rest)
    assert (await rest.get(HIT_RATES))["curves"] == []
    assert made_at(rest) == first


async def test_another_budget_or_policy_is_predicted_at_once(rest):
    """Review: For a minute after the cache was resized, the size of "today" was that of before."""
    assert (await rest.get(HIT_RATES))["policy"] == "lru"
    before = [made_at(rest)]
    await rest.post("/api/v1/commands/ResizeCache", {"cache_bytes": 2 << 20})
    await rest.get(HIT_RATES)
    before.append(made_at(rest))
    await rest.post("/api/v1/commands/SetPolicy", {"policy": "lfu"})
    assert (await rest.get(HIT_RATES))["policy"] == "lfu"
    assert before == sorted({*before, made_at(rest)})[:2]

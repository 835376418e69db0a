"""GET /api/v1/hit-rates: when a prediction is made anew."""

from typing import Any

from embstore_server.rest.hit_rates import Predictions
from tests.service.rest import Rest

PATH = "/api/v1/hit-rates?wait=true"


def made_at(rest: Rest) -> Any:
    """Return when the last prediction was made."""
    predictions: Predictions = rest.client._transport.app.state.predictions  # type: ignore[attr-defined]
    return predictions.made_at


async def test_a_store_that_has_counted_nothing_is_left_alone_for_a_while(rest: Rest) -> None:
    """Review: A page that looked every two seconds had all counts copied every two seconds."""
    assert (await rest.get(PATH))["curves"] == []
    first = made_at(rest)
    assert (await rest.get(PATH))["curves"] == []
    assert made_at(rest) == first


async def test_another_budget_or_policy_is_predicted_at_once(rest: Rest) -> None:
    """Review: For a minute after the cache was resized, the size of "today" was that of before."""
    assert (await rest.get(PATH))["policy"] == "lru"
    before = [made_at(rest)]
    await rest.post("/api/v1/cache", {"cache_bytes": 2 << 20})
    await rest.get(PATH)
    before.append(made_at(rest))
    await rest.post("/api/v1/commands/SetPolicy", {"policy": "lfu"})
    assert (await rest.get(PATH))["policy"] == "lfu"
    assert before == sorted({*before, made_at(rest)})[:2]

"""The REST border of a shard: it tells all, and takes nothing that all shards have to hear."""

from pathlib import Path
from typing import Any

import pytest

from embstore.commands import COMMANDS, Effect
from embstore.sharding import ShardMap
from embstore_proto.verbs import JSON_VERBS
from tests.service.rest import Rest, serving

CONFIG = {"name": "new", "dim": 4, "rows": "9", "sgd": {"learning_rate": 0.5}, "constant": {}}
ADDRESS = "127.0.0.1:1"
REFUSED = {
    "CreateTable": {"config": CONFIG},
    "DropTable": {"table": "t"},
    "ClearTable": {"table": "t"},
    "GrowTable": {"table": "t", "rows": 20},
    "SetLearningRate": {"table": "t", "learning_rate": 0.5},
    "Checkpoint": {"label": "one"},
    "SetRetention": {"label": "one", "retention": "RETENTION_PROTECTED"},
    "Restore": {"label": "one"},
    "EndSession": {"name": "run"},
}
"""By JSON: what would leave the cluster apart."""


def shard_options(folder: Path) -> dict[str, Any]:
    path = folder / "map.json"
    path.write_text(ShardMap.even("ads", [ADDRESS, "127.0.0.1:2"]).to_json())
    return {"shard_map": path, "shard": 0}


def state(rest: Rest) -> Any:
    engine = rest.service.engine
    tables = engine.tables
    return tables.frame.command_number, sorted(t.name for t in tables.by_id.values())


@pytest.mark.parametrize("is_shard", [True, False])
async def test_what_all_have_to_hear_is_refused_of_a_shard(tmp_path, runner, is_shard):
    options = shard_options(tmp_path) if is_shard else {}

    async with serving(tmp_path / "store", **options) as rest:
        before = state(rest)
        for verb, body in REFUSED.items():
            answer = await rest.client.post(f"/api/v1/commands/{verb}", json=body)
            told = " ".join(answer.text.split())
            if is_shard:
                assert answer.status_code == 400, told
                assert f"expected {verb} to be given to all of its shards" in told
                assert f"--address {ADDRESS}" in told
            else:
                assert "all of its shards" not in told
        if is_shard:
            assert state(rest) == before
            for path in ("Checkpoint", "Restore"):
                answer = await rest.client.post(f"/api/v1/commands/{path}", json={"label": "one"})
                assert answer.status_code == 400
                assert "all of its shards" in answer.text


async def test_what_is_of_a_shard_alone_is_answered(tmp_path, runner):
    async with serving(tmp_path / "store", **shard_options(tmp_path)) as rest:
        assert (await rest.get("/api/v1/stats"))["shard"]["number"] == 0
        await rest.post("/api/v1/commands/Flush")
        await rest.post("/api/v1/commands/SetPolicy", {"policy": "lfu"})
        await rest.post("/api/v1/commands/CheckIntegrity", {})


def test_every_verb_that_writes_is_refused_by_json():
    """A new one, too: what it does follows from its effect."""
    writes = {name for name in JSON_VERBS if COMMANDS[name].effect is Effect.WRITES}
    assert writes <= REFUSED.keys() <= {*JSON_VERBS}

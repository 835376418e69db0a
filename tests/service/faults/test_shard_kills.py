"""A training loop over three shards, while shards are killed and started again.

Where commands are logged, the loop notices nothing: each step is applied once on every shard, and
the bits are those of one store that nobody disturbed.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.errors import SessionExpiredError
from embstore.handles.store import Store
from embstore.sharding import ShardMap
from embstore_client import connect
from embstore_client.shards.router import Router
from tests.faults.forks import Forks
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S
from tests.service.faults.test_resumed_runs import RANKS, TABLES, Ranks

SEED, SHARDS, KILLS = 20_261_125, 3, 10


@contextmanager
def connected(shards: list[ForkedServer]) -> Iterator[Store]:
    """Yield a store of these shards."""
    addresses = tuple(shard.address for shard in shards)
    stores = [connect(address, timeout_s=PATIENCE_S) for address in addresses]
    executors = [store.executor for store in stores]
    with Store(Router(executors, ShardMap.even("pair", addresses))) as store:
        yield store


def started(forks: Forks, path: Path, **options: Any) -> list[ForkedServer]:
    shards = [ForkedServer(forks, path / f"shard-{n}", **options) for n in range(SHARDS)]
    for shard in shards:
        shard.start()
    return shards


def test_ranks_go_on_over_kills_of_shards(forks, quick_path, soak):
    """Whatever was out, of which shard has answered and which has not."""
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    shards = started(forks, quick_path, durability="commands")
    with ExitStack() as stack:
        stores = [stack.enter_context(connected(shards)) for _ in range(RANKS)]
        ranks = stack.enter_context(Ranks(stores))
        for n in range(KILLS):
            ranks.await_steps(int(rng.integers(0, 6)))
            shard = shards[int(rng.integers(SHARDS))]
            if n % 10 == 9:
                shard.stop()
            else:
                shard.kill()
            shard.start()
        ranks.end(quick_path / "other")
    for shard in shards:
        shard.stop()


def test_a_trainer_that_ends_within_a_step_is_told_to_go_back(forks, quick_path):
    """One shard has the step, the others have not, and its gradients are lost."""
    shards = started(forks, quick_path, durability="commands")

    def trained(store: Store, last: int) -> int:
        with store.session(["rows"], name="run", resume=False, wait_s=0) as run:
            begin = run.last_step
            for step in run.steps(range(begin + 1, last + 1), keys=keys):
                step.update({"rows": step.lookup()["rows"]})
            return begin

    def keys(number: int) -> dict[str, Any]:
        return {"rows": np.arange(number, number + 200)}

    with connected(shards) as store:
        store.create_table("rows", **TABLES["rows"])
        assert trained(store, 2) == 0
        store.checkpoint("step-2")
        expected = store.table("rows").digest()
    with connect(shards[1].address) as alone:  # a trainer ends when this shard has step 3
        trained_alone(alone)
    with connected(shards) as store:
        with pytest.raises(SessionExpiredError, match="restore a checkpoint of the cluster"):
            trained(store, 4)
        store.restore("step-2", force=True)
        assert store.table("rows").digest() == expected
        assert trained(store, 4) == 2
    for shard in shards:
        shard.stop()


def trained_alone(store: Store) -> None:
    """Train a step of the session on one shard only."""
    with store.session(["rows"], name="run", resume=False) as run:
        for step in run.steps([3], keys=lambda _: {"rows": np.arange(0)}):
            step.update({"rows": step.lookup()["rows"]})

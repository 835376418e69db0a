"""A cluster of real servers that grows and shrinks under two ranks of a session.

Whoever moves partitions is a process that is killed at each of its stages; after each a shard is
killed, too. Whoever comes next has all go by the map that is recorded. No step is lost or done
twice, and the bits are those of one store that nobody disturbed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from embstore.commands import Executor
from embstore.sharding import ShardMap
from embstore.storage.files import Files
from embstore_client import moving
from embstore_client.connecting import connect_one
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S
from tests.service.faults.test_resumed_runs import RANKS, Ranks, connected

SEED = 20_261_126
STAGES = ("is copied", "writes are paused", "leaves are compared", "recording", "recorded", "given")
"""Where a mover dies."""


class Recorded:
    """A map in a file, as a cluster's coordinator has it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def map(self) -> ShardMap:
        """The map of the cluster."""
        return ShardMap.from_json(self.path.read_text())

    def record(self, shard_map: ShardMap) -> None:
        """Replace it, for good."""
        Files(self.path.parent).replace(self.path.name, shard_map.to_json().encode())


@contextmanager
def executors(addresses: Any) -> Iterator[list[Executor]]:
    """Yield a connection to each shard itself."""
    with ExitStack() as stack:
        patience = {"timeout_s": PATIENCE_S, "connect_timeout_s": PATIENCE_S}
        stores = [connect_one(address, **patience) for address in addresses]
        yield [stack.enter_context(store).executor for store in stores]


def move(reports: Connection, path: str, count: int, dies_at: str) -> None:
    """Have the first shards have all partitions; end as by a crash at a stage."""

    def dies(stage: str) -> None:
        if dies_at and dies_at in stage:
            os.kill(os.getpid(), signal.SIGKILL)

    recorded = Recorded(Path(path))

    def record(shard_map: ShardMap) -> None:
        dies("recording")
        recorded.record(shard_map)
        dies("recorded")

    give = moving._give

    def give_one(shard: Executor, shard_map: ShardMap) -> None:
        give(shard, shard_map)
        dies("given")

    moving._give = give_one
    before = recorded.map
    with executors(before.shards) as shards:
        how: dict[str, Any] = {"by": "a mover", "few_rows": 0}
        moving.move(
            shards, before, before.evened(count), record, report=lambda what, _: dies(what), **how
        )
        reports.send("moved")


def test_ranks_go_on_while_movers_and_shards_are_killed(forks, quick_path, soak):
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    recorded = Recorded(quick_path / "map.json")
    options: dict[str, Any] = {"durability": "commands", "shard_map": recorded.path}
    servers = [ForkedServer(forks, quick_path / f"shard-{n}", **options, shard=n) for n in range(3)]
    first = ShardMap.even("ads", [server.address for server in servers[:2]])
    joined = first.joined_by([servers[2].address])
    recorded.record(first)
    for server in servers[:2]:
        server.start()
    pending = Recorded(quick_path / "joining.json")
    pending.record(replace(joined, version=1))
    servers[2]._options["shard_map"] = pending.path
    servers[2].start()
    with ExitStack() as stack:
        stores = [stack.enter_context(connected(servers[n % 2].address)) for n in range(RANKS)]
        ranks = stack.enter_context(Ranks(stores))
        ranks.await_steps(3)
        with executors(joined.shards) as shards:
            moving.join(shards[:2], shards[2:], joined, recorded.record, by="a mover")
        servers[2]._options["shard_map"] = recorded.path
        ranks.await_steps(3)
        for number, stage in enumerate(STAGES):
            version, count = recorded.map.version, 3 - number % 2
            child = forks.start(move, str(recorded.path), count, stage)
            assert child.wait() == -signal.SIGKILL
            killed = servers[int(rng.integers(3))]
            killed.kill()
            killed.start()
            assert recorded.map.version == version + (stage in ("recorded", "given"))
            with executors(recorded.map.shards) as shards:
                moving.resolve(shards, recorded.map)
            ranks.await_steps(3)
            child = forks.start(move, str(recorded.path), count, "")
            assert child.reports.poll(PATIENCE_S)
            assert child.reports.recv() == "moved"
            assert child.wait() == 0
            ranks.await_steps(3)
        ranks.end(quick_path / "other")
    for server in servers:
        server.stop()

"""What standbys cost and give: a leader without, with one, and with one that it waits for.

All have a command log, and all run on this machine: a standby executes every command again, so it
takes from its leader what on a machine of its own it would not. The steps of the three leaders, and
their updates of one key, take turns.

The **lag** of a standby is how many commands it has not yet, asked after every step of a trainer
that does not wait, and the time from an answer until the standby has what was answered.
"""

import contextlib
import itertools
import pathlib
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.engine import HEADROOM
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table
from tests.bench.turns import Kind, Spent, seconds_of, take_turns
from tests.bench.workload import Workload

_BATCHES = 8
_LOG = ("--durability", "commands", "--recovery-s", "1000000")
_LEADERS = {"alone": (), "followed": (), "waits": ("--standbys", "1")}


class StandbyContender:
    """One method, whose servers are in a folder that it removes."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._workload = Workload(scale, _BATCHES)
        self._folder = pathlib.Path(scale.data_dir) / "standby"

    def following(self) -> dict[str, Any]:
        """Time steps, updates of one key, the lag, and a standby's lookups."""
        self._folder.mkdir()
        with contextlib.ExitStack() as stack:
            leaders, standbys = {}, {}
            for name, options in _LEADERS.items():
                leaders[name] = self._server(stack, name, *options)
                if name != "alone":
                    follow = ("--follow", leaders[name].address)
                    standbys[name] = self._server(stack, f"of {name}", *follow)
            steps = {name: self._trainer(leader.store) for name, leader in leaders.items()}
            for step in steps.values():  # the caches come to their steady state
                for index in range(self._scale.settle_batches):
                    step(index)
            found = self._turns(leaders, steps)
            leader, standby = leaders["followed"].store, standbys["followed"].store
            found["lag"] = self._lag(leader, standby, steps["followed"])
            found["lookup_ms"] = self._lookups(leader, standby, steps["followed"])
            return found

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _server(self, stack: contextlib.ExitStack, name: str, *options: str) -> Server:
        cache_bytes = self._scale.cache_bytes(HEADROOM * self._scale.rows, self._scale.dim)
        server = Server(self._folder / name, cache_bytes, *_LOG, *options)
        stack.callback(server.close)
        return server

    def _trainer(self, store: Any) -> Callable[[int], None]:
        table = create_table(store, "ads", self._scale.rows, self._scale.dim)

        def step(index: int) -> None:
            keys = self._workload.batches[index % _BATCHES]
            table.lookup(keys)
            table.update(keys, self._workload.gradients_of(index))

        return step

    def _turns(self, leaders: dict[str, Server], steps: dict[str, Any]) -> dict[str, Any]:
        key, row = self._workload.batches[0][:1], np.zeros((1, self._scale.dim), np.float32)
        whole, ones = {}, {}
        for name, step in steps.items():
            index, table = iter(range(1 << 40)), leaders[name].store.table("ads")
            whole[name] = Kind(lambda step=step, index=index: step(next(index)))  # type: ignore[misc]
            ones[name] = Kind(lambda table=table: table.update(key, row))  # type: ignore[misc]
        rounds = self._scale.rounds
        return {
            "step_ms": _medians(take_turns(whole, rounds, self._scale.round_batches)),
            "one_key_ms": _medians(take_turns(ones, rounds, self._scale.one_key_calls)),
        }

    def _lag(self, leader: Any, standby: Any, step: Callable[[int], None]) -> dict[str, Any]:
        table = leader.table("ads")
        key, row = self._workload.batches[0][:1], np.zeros((1, self._scale.dim), np.float32)
        _await_even(leader, standby)
        after_one = []
        for _ in range(self._scale.one_key_calls):
            table.update(key, row)
            after_one.append(seconds_of(_await_even, leader, standby))
        behind = []
        for index in range(self._scale.replay_steps):
            step(index)
            behind.append(leader.command - standby.command)
        return {
            "after_one_key_ms": 1e3 * statistics.median(after_one),
            "median_commands": statistics.median(behind),
            "most_commands": max(behind),
            "after_the_last_step_ms": 1e3 * seconds_of(_await_even, leader, standby),
        }

    def _lookups(self, leader: Any, standby: Any, step: Callable[[int], None]) -> dict[str, float]:
        """Return what a lookup of a batch takes, of the leader and of a standby; and of the standby
        while the leader trains."""
        tables = {"leader": leader.table("ads"), "standby": standby.table("ads")}

        def lookup(table: Any) -> Kind:
            batches = itertools.cycle(self._workload.batches)
            return Kind(lambda: table.lookup(next(batches)))

        kinds = {name: lookup(table) for name, table in tables.items()}
        found = _medians(take_turns(kinds, self._scale.rounds, self._scale.round_batches))
        with _training(step):
            kind = {"standby, while its leader trains": lookup(tables["standby"])}
            return found | _medians(take_turns(kind, self._scale.rounds, self._scale.round_batches))


@contextlib.contextmanager
def _training(step: Callable[[int], None]) -> Any:
    ended = threading.Event()

    def train() -> None:
        index = 0
        while not ended.is_set():
            step(index)
            index += 1

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        yield
    finally:
        ended.set()
        trainer.join()


def _await_even(leader: Any, standby: Any) -> None:
    wanted = leader.command
    while standby.server_info().context.command < wanted:
        time.sleep(0)  # lets others have the processor; the time until then is what is measured


def _medians(spent: dict[str, Spent]) -> dict[str, float]:
    return {
        name: 1e3 * statistics.median(seconds for seconds, _ in calls)
        for name, calls in spent.items()
    }


start = StandbyContender

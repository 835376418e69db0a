"""The cost and the use of standbys: a leader without a standby, a leader with a standby, and a
leader that waits for its standby.

All three leaders have a command log, and all processes run on this machine. A standby executes
every command again. So it takes processor time from its leader, which a standby on another machine
would not do. The steps of the three leaders, and their updates of one key, take turns.

The **lag** of a standby is measured in two ways: as the number of commands that the standby does
not have yet, read after every step of a trainer that does not wait; and as the time from the answer
to a command until the standby has the command.
"""

import contextlib
import itertools
import pathlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table, trainer
from tests.bench.turns import Kind, medians_ms, seconds_of, take_turns
from tests.bench.workload import Workload

_BATCHES = 8
_LOG = ("--durability", "commands", "--recovery-s", "1000000")
_LEADERS = {"alone": (), "followed": (), "waits": ("--standbys", "1")}

Step = Callable[[], None]


def following(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time steps, updates of one key, the lag, and a standby's lookups."""
    workload = Workload(scale, _BATCHES)
    with contextlib.ExitStack() as stack:

        def server(name: str, *options: str) -> Server:
            made = Server(folder / name, scale.all_cached_bytes, *_LOG, *options)
            return stack.enter_context(contextlib.closing(made))

        leaders, standbys, steps = {}, {}, {}
        for name, options in _LEADERS.items():
            leaders[name] = server(name, *options)
            if name != "alone":
                standbys[name] = server(f"of {name}", "--follow", leaders[name].address)
            table = create_table(leaders[name].store, "ads", scale.rows, scale.dim)
            steps[name] = trainer(table, workload.batches, workload.gradients)
        for step in steps.values():  # the caches come to their steady state
            for _ in range(scale.settle_batches):
                step()
        key, row = workload.batches[0][:1], np.zeros((1, scale.dim), np.float32)
        ones = {name: _one_key(leader.store, key, row) for name, leader in leaders.items()}
        turns = (scale.rounds, scale.round_batches)
        whole = {name: Kind(step) for name, step in steps.items()}
        single = {name: Kind(one) for name, one in ones.items()}
        between = leaders["followed"].store, standbys["followed"].store
        return {
            "step_ms": medians_ms(take_turns(whole, *turns)),
            "one_key_ms": medians_ms(take_turns(single, scale.rounds, scale.one_key_calls)),
            "lag": _lag(scale, *between, steps["followed"], ones["followed"]),
            "lookup_ms": _lookups(workload, turns, *between, steps["followed"]),
        }


def _one_key(store: Any, key: Any, row: Any) -> Step:
    table = store.table("ads")
    return lambda: table.update(key, row)


def _lag(scale: Scale, leader: Any, standby: Any, step: Step, one: Step) -> dict[str, Any]:
    _await_even(leader, standby)
    after_one, behind = [], []
    for _ in range(scale.one_key_calls):
        one()
        after_one.append(seconds_of(_await_even, leader, standby))
    for _ in range(scale.replay_steps):
        step()
        behind.append(leader.command - standby.command)
    return {
        "after_one_key_ms": 1e3 * statistics.median(after_one),
        "median_commands": statistics.median(behind),
        "most_commands": max(behind),
        "after_the_last_step_ms": 1e3 * seconds_of(_await_even, leader, standby),
    }


def _lookups(
    workload: Workload, turns: tuple[int, int], leader: Any, standby: Any, step: Step
) -> dict[str, float]:
    """Return what a lookup of a batch takes, of the leader and of a standby; and of the standby
    while the leader trains."""

    def lookup(store: Any) -> Kind:
        table, batches = store.table("ads"), itertools.cycle(workload.batches)
        return Kind(lambda: table.lookup(next(batches)))

    found = take_turns({"leader": lookup(leader), "standby": lookup(standby)}, *turns)
    with _training(step):
        busy = {"standby, while its leader trains": lookup(standby)}
        return medians_ms(found | take_turns(busy, *turns))


@contextlib.contextmanager
def _training(step: Step) -> Any:
    ended = threading.Event()

    def train() -> None:
        while not ended.is_set():
            step()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _await_even(leader: Any, standby: Any) -> None:
    wanted = leader.command
    while standby.server_info().context.command < wanted:
        time.sleep(0)  # lets others have the processor; the time until then is what is measured

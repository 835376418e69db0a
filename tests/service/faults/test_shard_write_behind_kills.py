"""Trainers that run ahead of three shards, of which one after the other is killed.

Several steps are out at once, so a shard that is killed is behind the others by more than one. The
runs go on by themselves, and the bits are those of plain calls to one store.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from embstore.handles.store import Store
from tests.conformance.meeting import Meeting
from tests.service.faults.served import PATIENCE_S, until
from tests.service.faults.test_resumed_runs import TABLES, make_tables
from tests.service.faults.test_shard_kills import SHARDS, connected, started
from tests.service.faults.test_write_behind_kills import (
    LAST,
    check,
    gradients_of,
    is_skipped,
    keys_of,
)

SEED, KILLS = 20_261_127, 12


class Progress:
    """The last step that a rank has begun. Steps beyond what is allowed wait."""

    def __init__(self) -> None:
        self.begun = self._allowed = 0
        self._changed = threading.Condition()

    def allow(self, steps: int) -> None:
        """Let the ranks go on for so many steps."""
        with self._changed:
            self._allowed += steps
            self._changed.notify_all()

    def batches(self) -> Iterator[int]:
        """Yield the steps, as they are allowed."""
        for number in range(1, LAST + 1):
            with self._changed:
                assert self._changed.wait_for(lambda at=number: at <= self._allowed, PATIENCE_S)
            yield number

    def note(self, number: int) -> None:
        with self._changed:
            self.begun = max(self.begun, number)


def train(store: Store, rank: int, ranks: int, meeting: Meeting, progress: Progress) -> None:
    session: dict[str, Any] = {"waits": "none", "depth": 4, "lookahead": 9}
    if ranks > 1:
        session |= {"rank": rank, "world_size": ranks, "all_gather": meeting.of(rank)}
    with store.session([*TABLES], name="run", **session) as run:
        for step in run.steps(progress.batches(), lambda number: keys_of(number, rank)):
            progress.note(step.number)
            rows = step.lookup()
            if is_skipped(step.number):
                step.skip()
            else:
                step.update(gradients_of(step.number, rows))


@pytest.mark.parametrize("ranks", [1, 2])
def test_runs_that_wait_for_nothing_go_on_over_kills_of_shards(forks, quick_path, ranks, soak):
    sys.stdout.write(f"seed {SEED + soak}\n")
    rng = np.random.default_rng(SEED + soak)
    shards = started(forks, quick_path, durability="commands")
    progress, meeting = Progress(), Meeting(ranks)
    with ExitStack() as stack:
        stores = [stack.enter_context(connected(shards)) for _ in range(ranks)]
        make_tables(stores[0])
        pool = stack.enter_context(ThreadPoolExecutor(ranks))
        stack.callback(progress.allow, LAST)
        work = [
            pool.submit(train, store, n, ranks, meeting, progress) for n, store in enumerate(stores)
        ]
        for _ in range(KILLS):
            progress.allow(LAST // KILLS)
            wanted = progress.begun + int(rng.integers(0, LAST // KILLS))
            until(lambda at=wanted: progress.begun >= at or any(one.done() for one in work))
            shard = shards[int(rng.integers(SHARDS))]
            shard.kill()
            shard.start()
        progress.allow(LAST)
        for one in as_completed(work, PATIENCE_S):
            one.result()
        check(stores[0], quick_path / "plain", ranks)
    for shard in shards:
        shard.stop()

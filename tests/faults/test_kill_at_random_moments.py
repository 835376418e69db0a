"""kill -9 at a random moment, then the next round goes on in the same directory.

A child trains and reports every commit before and after; where commands are logged, every command.
The store must open at the last one that was reported done, or at the one that had begun; nothing
else.
"""

import time
from typing import Any

import numpy as np
import pytest

from embstore.config import Limits
from tests.faults.forks import Child
from tests.faults.promises import check_content, commands_promised, content_of
from tests.faults.training import (
    LOGGED,
    MANY_BASES,
    DenseStore,
    generator,
    labels_of,
    open_store,
    stir,
    train,
)

SEED = 20260301
ROUNDS = 10


def train_for_ever(reports: Any, path: str, seed: int, options: dict[str, Any]) -> None:
    """The child: train, with lookups between, and report commits; now and then close and open."""

    def announce(word: str, n: int) -> None:
        reports.send((word, n))

    for stretch in range(1, 1000):
        with open_store(path, **options) as store:
            for _ in range(7 * stretch):
                train(store, seed, 1, announce, every="durability" in options)
                stir(store, seed)
            announce("begins", store.command)
        announce("done", store.command)


def kill_at_a_random_moment(child: Child, rng: np.random.Generator) -> list[Any]:
    """Let the child report a few times, then a moment more, and kill it; return its reports."""
    reports = [child.reports.recv() for _ in range(rng.integers(1, 16))]
    deadline = time.monotonic() + float(rng.exponential(0.01)) * rng.integers(2)
    while (left := deadline - time.monotonic()) > 0:
        if child.reports.poll(left):
            reports.append(child.reports.recv())
    assert child.kill() == -9
    return reports + child.remaining()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="lru"),
        pytest.param({"policy": "lfu", "cache_bytes": 150_000}, id="lfu"),
        pytest.param({"limits": Limits(segment_bytes=4096, fold_segments=2)}, id="tiny-segments"),
        pytest.param({"limits": MANY_BASES}, id="many-bases"),
        pytest.param({"durability": "interval"}, id="interval"),
        pytest.param({"durability": "interval", "sync_every_s": 1e-3}, id="often"),
        pytest.param(LOGGED, id="commands"),
        pytest.param(LOGGED | {"recovery_s": 0.05}, id="short-log"),
    ],
)
def test_store_opens_at_its_last_commit_after_a_kill(tmp_path, forks, options, soak):
    seed = SEED + soak
    rng = generator(seed)
    dense = DenseStore()
    for _ in range(ROUNDS):
        child = forks.start(train_for_ever, str(tmp_path), seed, options)
        expected = commands_promised(kill_at_a_random_moment(child, rng), dense.command)
        if options.get("durability") == "interval":  # what was not yet written is lost
            expected = set(range(dense.command, max(expected) + 1))
        with open_store(tmp_path, **options) as store:
            assert store.command in expected
            is_labelled = f"command-{store.command}" in labels_of(store)
            train(dense, seed, store.command - dense.command, label_last=is_labelled)
            check_content(store, content_of(dense))

"""What the trainers of a cluster train: two ranks of one session, and the same without a cluster.

Gradients are computed from rows and from the number of the step, so a step that is done over from
the same rows does the same.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import embstore
from embstore.config import Adam, Constant, Sgd, Uniform
from embstore.handles.store import Store

RANKS, KEYS, ROWS, DIM = 2, 40, 3000, 4
LABEL_STEPS = 20
"""From one checkpoint to the next."""
LAST_STEPS = 2
"""That a trainer keeps for when it may end: one is begun after the last that anything disturbs."""
TABLES: dict[str, dict[str, Any]] = {
    "marks": {"dim": 1, "rows": 1 << 20, "optimizer": Sgd(1.0), "initializer": Constant(0.0)},
    "rows": {"dim": DIM, "rows": ROWS, "optimizer": Adam(0.01), "initializer": Uniform(-0.1, 0.1)},
}


def make_tables(store: Store) -> None:
    """Make the tables, and the first checkpoint."""
    for name, config in TABLES.items():
        store.create_table(name, **config)
    store.checkpoint(label_of(0))


def label_of(step: int) -> str:
    """Return the label of the checkpoint after a step."""
    return f"step-{step}"


def is_skipped(step: int) -> bool:
    """Whether the ranks skip a step."""
    return step % 7 == 3


def keys_of(batch: tuple[int, int]) -> dict[str, Any]:
    """Return the keys of a rank's share of a step; repeated ones too."""
    rank, number = batch
    keys = np.random.default_rng([number, rank]).integers(0, ROWS, KEYS)
    return {"marks": [number], "rows": keys}


def train(
    store: Store,
    rank: int,
    steps: int,
    finished: Callable[[int], None] = lambda step: None,
    may_end: Callable[[], object] = lambda: None,
    *,
    keeps: bool = True,
    **session: Any,
) -> None:
    """Train one rank's share of all steps, from where the session is; `finished` is told of each,
    `may_end` waits until the last ones may be done, and rank 0 keeps checkpoints, if it `keeps`
    any."""
    with store.session(
        [*TABLES], name="pair", rank=rank, world_size=RANKS, resume=True, **session
    ) as run:
        for step in run.steps(_batches(rank, steps, may_end), keys=keys_of):
            if is_skipped(step.number):
                step.skip()
            else:
                step.update(_gradients(step, rank), gradient_scale=1 / RANKS)
            finished(step.number)
            if keeps and rank == 0 and step.number % LABEL_STEPS == 0:
                store.checkpoint(label_of(step.number))


def _batches(rank: int, steps: int, may_end: Callable[[], object]) -> Iterator[tuple[int, int]]:
    for number in range(1, steps + 1):
        if number > steps - LAST_STEPS:
            may_end()
        yield rank, number


def _gradients(step: Any, rank: int) -> dict[str, Any]:
    noise = np.random.default_rng([step.number, rank, 1]).standard_normal(DIM, np.float32)
    return {"marks": np.ones((1, 1), np.float32), "rows": 0.1 * step.lookup()["rows"] + noise}


def digests(store: Store) -> dict[str, str]:
    """Return the digest of each table."""
    return {name: store.table(name).digest() for name in TABLES}


def applied_counts(store: Store, steps: int) -> list[int]:
    """Return how many times each step was applied."""
    marks = store.table("marks").lookup(np.arange(1, steps + 1), admit=False)[:, 0]
    return [int(-mark) for mark in marks]


def assert_done_once(store: Store, path: Path, steps: int) -> None:
    """Have each step been applied once, with the digests of a run that nobody disturbed."""
    wanted = [int(not is_skipped(step)) for step in range(1, steps + 1)]
    assert applied_counts(store, steps) == wanted
    assert digests(store) == undisturbed(path, steps)
    store.check_integrity()


def undisturbed(path: Path, steps: int) -> dict[str, str]:
    """Return the digests of one store after all steps, with nobody to disturb them."""
    with embstore.open(path, cache_bytes=1 << 24, device="cpu") as store:
        make_tables(store)
        with ThreadPoolExecutor(RANKS) as pool:
            list(pool.map(lambda rank: train(store, rank, steps, keeps=False), range(RANKS)))
        return digests(store)

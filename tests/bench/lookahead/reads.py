"""The rows that a session reads, beside the rows that simple simulators of schedules read
(tests/schedules.py).

    python -m tests.bench.lookahead.reads

prints the number of rows as multiples of OPT: for traces of four kinds and caches of three sizes,
with LRU and rank without look-ahead, and with sessions that know 8, 16 and 64 steps. Keys are
announced in time, as by a feed. The results are counts, not times; they vary a little, because the
planner's choices depend on how far its threads have come.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, NamedTuple

import numpy as np

import embstore
from embstore import Constant, Sgd
from embstore.profiles.profile import Profile, TableProfile
from tests.conformance.cases import engine_of
from tests.schedules import Keys, rows_read, traces

SIZES = {"tight": 2.0, "near": 3.9, "wide": 7.4}
"""Of a cache, in steps."""
SLOT_BYTES = 81
"""Of a row of 8 weights with its part of the index."""
STEPS, DRAWS, SEED = 200, 400, 20_261_125
KNOWN = 8, 16, 64
_PATIENCE_S, _LOOK_S = 300.0, 0.0005


class Trained(NamedTuple):
    """What a session read."""

    rows: int
    slots: int


def cache_bytes(size: str, steps: list[Keys]) -> int:
    """Return the budget of a cache for so many steps of a trace."""
    return int(SIZES[size] * np.mean([len(keys) for keys in steps]) * SLOT_BYTES)


def levels_of(steps: list[Keys]) -> Keys:
    """Return how often each key is used: the best profile that rank can have."""
    return np.bincount(np.concatenate(steps))


def trained(
    path: Path,
    steps: list[Keys],
    budget: int,
    known: int,
    levels: Keys | None = None,
    planner: str = "per_step",
) -> Trained:
    """Train in a session on an empty table.

    Parameters
    ----------
    budget : of the cache, in bytes
    known : steps that are announced, that at hand included
    levels : of all keys; None: the policy is lru
    """
    policy = "lru" if levels is None else "rank"
    count = 1 + max(int(keys.max()) for keys in steps)
    with embstore.open(path, device="cpu", cache_bytes=budget, policy=policy) as store:
        store.create_table("a", dim=8, rows=count, optimizer=Sgd(0.1), initializer=Constant(0.0))
        if levels is not None:
            used = np.flatnonzero(levels)
            table = TableProfile("a", count, used, levels[used], int(levels.sum()))
            store.import_profile(Profile({"a": table}))
        _train(store, steps, known, planner)
        (pool,) = store.stats()["cache"]["pools"]
    rows = sum(pool[f"misses_{origin}"] for origin in ("log", "base", "initializer"))
    return Trained(rows, pool["slots"])


def _train(store: Any, steps: list[Keys], known: int, planner: str) -> None:
    sessions = store.sessions
    sessions.open("run", ["a"], lookahead_steps_max=known, planner=planner)
    member = sessions.join("run", 0).member
    (session,) = engine_of(store).sessions._registry.sessions.values()
    announced = 0
    for number in range(1, len(steps) + 1):
        last = min(number + known - 1, len(steps))
        new = {n: {"a": steps[n - 1]} for n in range(announced + 1, last + 1)}
        sessions.announce(member, new)
        announced = last
        while session.noted_step < last:
            Event().wait(_LOOK_S)
        rows = sessions.lookup_step(member, number, timeout_s=_PATIENCE_S)["a"]
        sessions.update_step(member, number, {"a": np.ones_like(rows)})
    sessions.close(member)


def table(tell: Callable[[str], object] = print) -> None:
    tell(f"{'trace':9}{'cache':7}{'lru':>6}{'rank':>6}" + "".join(f"{k:>6}" for k in KNOWN))
    for kind, steps in traces(STEPS, DRAWS, SEED).items():
        for size in SIZES:
            with TemporaryDirectory() as root:
                budget = cache_bytes(size, steps)
                runs = [trained(Path(root) / str(k), steps, budget, k) for k in KNOWN]
            slots = runs[0].slots
            opt = rows_read(steps, slots, STEPS)
            alone = [rows_read(steps, slots, 0), rows_read(steps, slots, 0, levels_of(steps))]
            of_opt = [rows / opt for rows in (*alone, *(run.rows for run in runs))]
            tell(f"{kind:9}{size:7}" + "".join(f"{ratio:6.2f}" for ratio in of_opt))


if __name__ == "__main__":
    table()

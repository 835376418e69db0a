"""Rounds over lanes, and their medians.

A **lane** is one thing that is timed: another system, or the store with one cache size. It answers
a batch with a lookup and then an update, as a training step does, and has its own position in the
trace. A **contender** is a process with one or more lanes. In every round every lane runs a few
batches, and the order of the lanes rotates from round to round. A lane may need objects that are
not part of the service (a tensor that shares the keys' memory, the names of keys). It makes them in
``prepare``, which is not timed.
"""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from tests.bench.scale import Scale
from tests.bench.turns import in_turns
from tests.bench.worker import Worker
from tests.bench.workload import Keys, Rows, Workload

Times = list[tuple[float, float]]
"""Seconds of (lookup, update) of each timed batch."""


class Lane(Protocol):
    """What a contender implements once for each thing timed."""

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        """Return the batch in the lane's own form. Not timed."""

    def lookup(self, prepared: Any) -> Any:
        """Look the batch up; what it returns goes to `update`."""

    def update(self, prepared: Any, looked_up: Any) -> None:
        """Apply the batch's gradients."""


class Contender:
    """The worker's side: runs its lanes over the trace when asked."""

    def __init__(self, workload: Workload, lanes: dict[str, Lane]) -> None:
        self._workload = workload
        self._lanes = lanes
        self._next_batch = dict.fromkeys(lanes, 0)

    def names(self) -> list[str]:
        return list(self._lanes)

    def run(self, name: str, untimed: int, timed: int) -> Times:
        """Run the lane's next batches and return the times of the last `timed`."""
        gc.collect()
        gc.disable()
        try:
            times = [self._batch(name) for _ in range(untimed + timed)]
        finally:
            gc.enable()
        return times[untimed:]

    def _batch(self, name: str) -> tuple[float, float]:
        lane = self._lanes[name]
        index = self._next_batch[name] % len(self._workload.batches)
        self._next_batch[name] += 1
        prepared = lane.prepare(self._workload.batches[index], self._workload.gradients_of(index))
        begin = time.perf_counter()
        looked_up = lane.lookup(prepared)
        middle = time.perf_counter()
        lane.update(prepared, looked_up)
        return middle - begin, time.perf_counter() - middle

    def close(self) -> None:
        """Give back what the lanes hold."""


WARM_BATCHES = 3


def warm(contender: Contender) -> Contender:
    """Return the contender after a few batches on every lane."""
    for name in contender.names():
        contender.run(name, WARM_BATCHES, 0)
    return contender


def play(
    workers: dict[str, Worker], scale: Scale, progress: Callable[[str], None]
) -> tuple[dict[str, Times], dict[str, str]]:
    """Let all lanes run in rounds; return their times, and, by worker, why it broke."""
    times: dict[str, Times] = {}
    broken: dict[str, str] = {}
    lanes = [(worker, lane) for worker in workers for lane in workers[worker].ask("names")]
    for _, (worker, lane) in in_turns(lanes, scale.rounds, progress):
        if worker in broken:
            continue
        try:
            spent = workers[worker].ask("run", lane, 1, scale.round_batches)
            times.setdefault(lane, []).extend(spent)
        except Exception as exc:  # the others go on
            broken[worker] = f"{type(exc).__name__}: {exc}"
    return times, broken


def summary(times: Times) -> dict[str, Any]:
    """Return median milliseconds of lookup, update and both, with quartiles of both."""
    both = sorted(lookup + update for lookup, update in times)
    quartiles = statistics.quantiles(both, n=4) if len(both) > 1 else [both[0]] * 3
    return {
        "batches": len(times),
        "lookup_ms": 1e3 * statistics.median(lookup for lookup, _ in times),
        "update_ms": 1e3 * statistics.median(update for _, update in times),
        "both_ms": 1e3 * statistics.median(both),
        "both_ms_quartiles": [1e3 * quartiles[0], 1e3 * quartiles[2]],
    }

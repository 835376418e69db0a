"""Blocks of steps: contestants take the same steps of the trace, one after the other.

A **block** has some unmeasured steps and then some measured steps. In every round each contestant
has one block, over the same batches. The order rotates, so a slow moment of the machine affects all
contestants equally. In the unmeasured steps only the session computes: its preparations must reach
the pace at which they are used up, while a plain cache has no such pace.

The time of a step is the elapsed time of lookup, computation and update. The computation ends after
its fixed time, unless the work in parallel to it takes longer.
"""

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from tests.bench.lookahead.contestants import LookAhead, Plain
from tests.bench.lookahead.stores import wait_until
from tests.bench.turns import in_turns

Parts = tuple[float, float, float, float]
"""Seconds of a step: lookup, what was done beside the computation, update, and all of it."""


@dataclass
class Steps:
    """What the measured steps of one contestant came to."""

    parts: list[Parts] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return medians in milliseconds, quartiles of the step, and the counts of a step."""
        lookup, beside, update, whole = (sorted(column) for column in zip(*self.parts, strict=True))
        low, _, high = statistics.quantiles(whole, n=4)
        return {
            "steps": len(whole),
            "step_ms": 1e3 * statistics.median(whole),
            "step_ms_quartiles": [1e3 * low, 1e3 * high],
            "lookup_ms": 1e3 * statistics.median(lookup),
            "beside_ms": 1e3 * statistics.median(beside),
            "update_ms": 1e3 * statistics.median(update),
            "a_step": {name: value / len(whole) for name, value in self.counts.items()},
        }


def take_step(contestant: Plain, step: int, computation_s: float) -> Parts:
    """Take one step and return the seconds of its parts."""
    begin = time.perf_counter()
    contestant.lookup(step)
    looked_up = time.perf_counter()
    contestant.beside(step)
    beside = time.perf_counter()
    if computation_s:
        wait_until(looked_up + computation_s)
    computed = time.perf_counter()
    contestant.update(step)
    end = time.perf_counter()
    return looked_up - begin, beside - looked_up, end - computed, end - begin


def _block(contestant: Plain, steps: range, warm: int, computation_s: float) -> Steps:
    contestant.before_block()
    warm_s = computation_s if isinstance(contestant, LookAhead) else 0.0
    for step in steps[:warm]:
        take_step(contestant, step, warm_s)
    before = contestant.counts()
    parts = [take_step(contestant, step, computation_s) for step in steps[warm:]]
    after = contestant.counts()
    return Steps(parts, {name: after[name] - before.get(name, 0.0) for name in after})


def take_blocks(
    contestants: dict[str, Plain],
    first: int,
    *,
    rounds: int,
    warm: int,
    measured: int,
    computation_s: float,
    latency_s: float,
) -> tuple[dict[str, Steps], int]:
    """Return the steps of `rounds` blocks of each from batch `first` on, and the next batch."""
    for contestant in contestants.values():
        contestant.opened.files.latency_s = latency_s
    found = {name: Steps() for name in contestants}
    for index, name in in_turns(list(contestants), rounds):
        begin = first + index * (warm + measured)
        steps = range(begin, begin + warm + measured)
        block = _block(contestants[name], steps, warm, computation_s)
        found[name].parts += block.parts
        for count, grown in block.counts.items():
            found[name].counts[count] = found[name].counts.get(count, 0.0) + grown
    return found, first + rounds * (warm + measured)


def settle(contestants: dict[str, Plain], count: int) -> int:
    """Let all take the first steps, without computation or latency; return the next batch."""
    for contestant in contestants.values():
        contestant.opened.files.latency_s = 0.0
        for step in range(count):
            take_step(contestant, step, 0.0)
    return count

"""The engine's time for steps of 50,000 unique keys, by stage of the planner.

Small steps do not show the cost of a key, so these steps are large, all of one size, and without
simulated waits. The stages are those of `embstore.cache.prefetch.Work`: `plan` finds and pins rows,
and takes slots for the missing rows, whose victims are logged in this stage; `collect` reads the
missing rows, in parallel to the engine; `exchange` moves the rows to their slots; `insert` makes
them resident.

This is measured twice: with a cache that contains the table, so that planning is the only work, and
with a cache that contains a part of it, so that rows arrive and dirty rows leave. The counter of
each stage grows from one step to the next; the time of the stage is the median of this growth over
the steps. So a moment in which the machine does something else has little effect.
"""

import contextlib
import itertools
import statistics
from dataclasses import replace
from typing import Any

from tests.bench.lookahead.blocks import take_step
from tests.bench.lookahead.contestants import LookAhead
from tests.bench.lookahead.grid import STAGES, Progress
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import Written
from tests.bench.lookahead.trace import WholeBatches

PER_KEYS = 50_000
_COMPUTATION_S = 0.05
"""Long enough for each step to be prepared beside the one before."""


def measure(written: Written, scale: Scale, progress: Progress) -> dict[str, Any]:
    """Return, for a cache of the whole table and of a part, the milliseconds of each stage."""
    large = replace(scale, batch_keys=scale.planner_keys)
    trace = WholeBatches(large, scale.planner_exponent)
    trace.prepare(2 * scale.lookahead_steps + scale.planner_steps)
    found = {}
    for case, share in (("resident", 1.0), ("missing", scale.planner_share)):
        progress(f"planner, {scale.planner_keys:,} keys a step, {share:.0%} cached")
        opened = written.open("planner", int(share * scale.rows))
        with contextlib.closing(LookAhead(opened, trace, large)) as session:
            found[case] = {"cache_share": share} | _taken(session, scale)
    return found


def _taken(session: LookAhead, scale: Scale) -> dict[str, Any]:
    """Take the steps; return what one costs."""
    first = scale.lookahead_steps
    for step in range(first):
        take_step(session, step, _COMPUTATION_S)
    counts = [session.counts()]
    for step in range(first, first + scale.planner_steps):
        take_step(session, step, _COMPUTATION_S)
        counts.append(session.counts())
    factor = 1e3 * PER_KEYS / scale.planner_keys
    collected = counts[-1]["collected_rows"] - counts[0]["collected_rows"]
    return {
        "keys": scale.planner_keys,
        "collected_rows": collected / scale.planner_steps,
        "stages_ms_50k": {
            stage: factor * _median_growth([count[f"{stage}_s"] for count in counts])
            for stage in STAGES
        },
    }


def _median_growth(totals: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(totals))

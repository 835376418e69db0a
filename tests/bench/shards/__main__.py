"""What shards cost: calls and bytes of a step by their number, the router's own time, a step
through the router beside one without it, and growth.

``python -m tests.bench.shards``. Calls and bytes are counted by the servers, and are the same on
any machine; times are ratios, of what takes turns in one run.
"""

import sys
from typing import Any

from tests.bench.program import Program, each
from tests.bench.report import Goal, NotMeasuredError, Results, figure
from tests.bench.shards import counts, growth, router, scale, steps

PARTS = {
    "router": router.measure,
    "counts": counts.measure,
    "steps": steps.measure,
    "growth": growth.measure,
}


def _split_ms(results: Results) -> float:
    found: dict[str, Any] = figure(results, "router")
    if not found:
        raise NotMeasuredError("more shards than one")
    return float(max(one["split_ms"] for one in found.values()))


GOALS = (
    Goal("a step over one shard : one server", "steps/1/ratio", "<= 1.1 times"),
    Goal("to find the shards of a step's keys", _split_ms, "<= 1 ms"),
)

PROGRAM = Program(
    name="shards",
    about=__doc__,
    room="about 3 GB",
    parts=list(PARTS),
    measure=each(PARTS, lambda run: (run.scale, run.folder)),
    scale=scale,
    goals=GOALS,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

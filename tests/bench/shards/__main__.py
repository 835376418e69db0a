"""What shards cost: calls and bytes of a step by their number, the router's own time, a step
through the router beside one without it, and growth.

``python -m tests.bench.shards``. Calls and bytes are counted by the servers, and are the same on
any machine; times are ratios, of what takes turns in one run.
"""

import sys

from tests.bench.program import Program
from tests.bench.report import Goal
from tests.bench.shards import counts, growth, router, steps
from tests.bench.shards.scale import Scale

PROGRAM = Program(
    name="shards",
    about=__doc__,
    room="about 3 GB",
    parts={
        "router": router.measure,
        "counts": counts.measure,
        "steps": steps.measure,
        "growth": growth.measure,
    },
    scale=Scale,
    goals=(
        Goal("a step over one shard : one server", "steps/1/ratio", "<= 1.1 times"),
        Goal("to find the shards of a step's keys", "max router/*/split_ms", "<= 1 ms"),
    ),
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

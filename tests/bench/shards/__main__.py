"""The cost of shards: calls and bytes of a step by the number of shards, the router's own time, a
step through the router beside a step without it, and the growth of a cluster.

``python -m tests.bench.shards`` runs the benchmark. Servers count calls and bytes, which are the
same on any machine. Times are given as ratios of measurements that take turns in one run.
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

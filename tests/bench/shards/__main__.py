"""Shards, by number; see the package, and `tests.bench.program`."""

import sys
from collections.abc import Sequence

from tests.bench import shards
from tests.bench.program import Program, Run
from tests.bench.shards import counts, growth, report, router, scale, steps

PARTS = {
    "router": router.measure,
    "counts": counts.measure,
    "steps": steps.measure,
    "growth": growth.measure,
}


def measure(run: Run, wanted: Sequence[str]) -> None:
    """Measure the parts that are wanted."""
    for name in wanted:
        run.keep(name, PARTS[name], run.scale, run.folder)


PROGRAM = Program(
    name="shards",
    about=shards.__doc__ or "",
    room="about 3 GB",
    parts=list(PARTS),
    measure=measure,
    scale=scale,
    report=report,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

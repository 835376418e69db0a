"""Look-ahead beside other caches; see the package, and `tests.bench.program`."""

import sys
from functools import partial

from tests.bench import lookahead
from tests.bench.lookahead import grid, planner, plots, report, scale, sweep
from tests.bench.lookahead.stores import Written
from tests.bench.program import Parts, Program, Run

PARTS = {"cells": grid.measure, "sweep": sweep.measure, "planner": planner.measure}


def prepare(run: Run) -> Parts:
    """Write every row."""
    run.progress("every row is written")
    given = Written(run.folder, run.scale), run.scale, run.progress
    return {name: partial(measure, *given) for name, measure in PARTS.items()}


PROGRAM = Program(
    name="lookahead",
    about=lookahead.__doc__ or "",
    room="about 5 GB",
    parts=list(PARTS),
    prepare=prepare,
    scale=scale,
    report=report,
    plots=plots,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

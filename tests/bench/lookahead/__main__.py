"""Look-ahead beside other caches; see the package, and `tests.bench.program`."""

import sys
from collections.abc import Sequence

from tests.bench import lookahead
from tests.bench.lookahead import grid, network, planner, plots, report, scale, sweep
from tests.bench.lookahead.stores import Written
from tests.bench.program import Program, Run

PARTS = {
    "cells": grid.measure,
    "sweep": sweep.measure,
    "planner": planner.measure,
    "network": network.measure,
}


def measure(run: Run, wanted: Sequence[str]) -> None:
    """Write every row, and measure the parts."""
    run.progress("every row is written")
    written = Written(run.folder, run.scale)
    for name in wanted:
        run.keep(name, PARTS[name], written, run.scale, run.progress)


PROGRAM = Program(
    name="lookahead",
    about=lookahead.__doc__ or "",
    room="about 5 GB",
    parts=list(PARTS),
    measure=measure,
    scale=scale,
    report=report,
    plots=plots,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

"""Training with each policy on one trace; see the package, and `tests.bench.program`."""

import sys
from collections.abc import Sequence

from tests.bench import hot
from tests.bench.hot import costs, plots, report, scale, training
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import Trace
from tests.bench.program import Program, Run

PARTS = {"training": training.measure, "costs": costs.measure}


def measure(run: Run, wanted: Sequence[str]) -> None:
    """Draw and count the samples, write every row, and measure the parts."""
    run.progress("samples are drawn and counted")
    trace = Trace(run.scale)
    known = training.count(trace, run.scale)
    run.progress("every row is written")
    written = Written(run.folder, run.scale)
    run.results["written_s"] = written.seconds
    for name in wanted:
        run.keep(name, PARTS[name], written, trace, known, run.scale, run.progress)


PROGRAM = Program(
    name="hot",
    about=hot.__doc__ or "",
    room="about 10 GB",
    parts=list(PARTS),
    measure=measure,
    scale=scale,
    report=report,
    plots=plots,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

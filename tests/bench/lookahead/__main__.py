"""The benchmark of look-ahead: a trainer's step with announced keys, beside caches that only react.

``python -m tests.bench.lookahead`` runs everything in one process, on one trace, and prints one
table and the goals; a JSON file and the plots are written into ``docs/figures/``. A **step** is a
lookup, a computation and an update. The computation is a wait that leaves the cores free, as the
computation of a GPU does.

Five **contestants** take the same steps, in blocks that alternate:

* ``lookahead``: a session; the keys of the next steps are announced
* ``lru``, ``lfu``: plain calls, with the store's policies
* ``static``: the hottest rows stay; the other rows pass through room for one batch
* ``bound``: plain calls with a cache that contains the whole table: no row is ever missing

Batches have unique keys, as a trainer's feed prepares them; no contestant's time includes this
work. All rows were written before and are in storage. The storage's files are in the page cache,
and a slow disk is simulated: each **batch of cold rows** waits for a fixed time before its rows can
be read. A plain call that reads its missing rows in pieces waits only once, because at its first
piece it has requested all of them from the disk. A background thread waits for each read that it
makes.

Rows are dirty from the start, as in training: a row that leaves a cache is written.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tests.bench.lookahead import goals, grid, network, planner, plots
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import Written
from tests.bench.program import Program, Run


def given(run: Run) -> Sequence[Any]:
    run.progress("every row is written")
    return Written(run.folder, run.scale), run.scale, run.progress


PROGRAM = Program(
    name="lookahead",
    about=__doc__,
    room="about 5 GB",
    parts={
        "cells": grid.measure,
        "sweep": grid.sweep,
        "planner": planner.measure,
        "network": network.measure,
    },
    given=given,
    scale=Scale,
    goals=goals.GOALS,
    derive=goals.derive,
    plots=plots.draw,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

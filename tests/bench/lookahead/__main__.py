"""The benchmark of look-ahead: a trainer's step with announced keys, beside caches that only react.

``python -m tests.bench.lookahead`` runs everything in one process, on one trace, and prints one
table and the goals; a JSON and the plots go into ``docs/figures/``. A **step** is a lookup, a
computation and an update. The computation is a wait that leaves the cores free, as a GPU's does.

Five **contestants** take the same steps, in blocks that alternate:

* ``lookahead``  a session; the keys of the next steps are announced
* ``lru``, ``lfu``  plain calls, the store's policies
* ``static``     the hottest rows stay; the others pass through room for one batch
* ``bound``      plain calls with a cache that holds the whole table: nothing is ever missing

Batches are unique keys: so does a trainer's feed prepare them, and no contestant is paid for it.
All rows were written before and are in storage. The storage's files are in the page cache, and its
slowness is injected: each **batch of cold rows** waits for so long before its rows can be read. A
plain call that reads its missing rows in pieces waits once: the disk has been asked for all of them
at the first. A background thread waits for each read that it makes.

Rows are dirty from the start, as they are in training: what leaves a cache is written.
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

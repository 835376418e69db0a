"""The benchmark of frequencies: a DLRM trained under each policy, on one trace, beside a cache that
holds every row.

``python -m tests.bench.hot`` runs everything in one process and prints one table and the goals; a
JSON and a picture go into ``docs/figures/``. The **trace** has the shape of Criteo Kaggle: 26
tables of the true numbers of rows, Zipf 1.05 in each column, labels of the demo's planted model.
Every row is on the storage before, in the base, whose files are in the page cache. The cache holds
1.5 % of the rows.

All **contestants** begin with the same rows and take the same batches, in blocks that alternate:

* ``all-cached``   LRU, with room for every row, and all of them there: the bound
* ``lru``, ``lfu``  from an empty cache
* ``rank``         70 % of the slots warm, by a profile of the whole trace
* ``rank-sampled`` the same by a profile of 5 % of its samples
* ``ahead-lru``, ``ahead-rank``  a look-ahead session over each
* ``hot-50``, ``hot-100``  hot/cold training over LRU, at two rates; the hot set takes 1.5 % of the
  bytes at the trainer, beside the cache of 1.5 % at the store

**Hits** are those of the training lookups alone, from the first batch on; so a row that no warm-up
brought is missed once, however short the trace is. The **offline** rate is what a cache of as many
slots reaches which holds the most accessed rows of this very trace from the beginning. Over so
short a trace these are partly rows that are accessed once, which nobody can know before; a longer
trace would be kinder to all.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tests.bench.hot import blocks, costs, goals, plots, scale
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import Trace
from tests.bench.program import Program, Run, each

PARTS = {"training": blocks.measure, "costs": costs.measure}


def given(run: Run) -> Sequence[Any]:
    """Draw and count the samples, and write every row."""
    run.progress("samples are drawn and counted")
    trace = Trace(run.scale)
    known = blocks.count(trace, run.scale)
    run.progress("every row is written")
    written = Written(run.folder, run.scale)
    run.results["written_s"] = written.seconds
    return written, trace, known, run.scale, run.progress


PROGRAM = Program(
    name="hot",
    about=__doc__,
    room="about 10 GB",
    parts=list(PARTS),
    measure=each(PARTS, given),
    scale=scale,
    goals=goals.GOALS,
    plots=plots.draw,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

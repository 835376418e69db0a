"""The benchmark of cache policies that use frequencies: a DLRM is trained under each policy, on one
trace, and compared with a cache that contains every row.

``python -m tests.bench.hot`` runs everything in one process, prints all figures and the goals, and
writes a JSON file into ``docs/figures/``. The **trace** has the shape of Criteo Kaggle: 26 tables
with the data set's numbers of rows, Zipf 1.05 in each column, and labels of the demo's planted
model. Every row was written before, and is in the base, whose files are in the page cache. The
cache has room for 1.5 % of the rows.

All **contestants** begin with the same rows and take the same batches, in blocks that alternate:

    all-cached   LRU, with room for every row, and all rows resident: the bound
    lru, lfu     from an empty cache
    rank         70 % of the slots are warm, by a profile of the whole trace
    rank-sampled the same, by a profile of 5 % of the trace's samples
    ahead-lru, ahead-rank   a look-ahead session over each of these two caches
    hot-50, hot-100   hot/cold training over LRU, at two rates; the hot set takes 1.5 % of the
                      bytes at the trainer, in addition to the cache of 1.5 % at the store

**Hits** are those of the training lookups alone, counted from the first batch on. So a row that no
warm-up has loaded is missed once, however short the trace is. The **offline** rate is the hit rate
of a cache with as many slots that contains, from the beginning, the rows that this very trace
accesses most. In so short a trace, some of these rows are accessed only once, and nobody can know
them before; a longer trace would favour all contestants more.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tests.bench.hot import blocks, costs
from tests.bench.hot.contestants import BOUND
from tests.bench.hot.scale import Scale
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import Trace
from tests.bench.program import Program, Run
from tests.bench.report import Goal

_TRAINED = "training/contestants"
_HOT_COLD = "hot-50|hot-100"
_OTHERS = f"lru|lfu|rank|rank-sampled|ahead-lru|ahead-rank|{_HOT_COLD}"


def given(run: Run) -> Sequence[Any]:
    """Draw and count the samples, and write every row."""
    run.progress("samples are drawn and counted")
    trace = Trace(run.scale)
    known = blocks.count(trace, run.scale)
    run.progress("every row is written")
    written = Written(run.folder, run.scale)
    run.results["written_s"] = written.seconds
    return written, trace, known, run.scale, run.progress


def derive(results: dict[str, Any]) -> None:
    """Say of each contestant how far its AUC is from that of the bound."""
    found = results.get("training", {}).get("contestants", {})
    for one in found.values():
        aucs = one["auc"], found[BOUND]["auc"]
        one["auc_difference"] = None if None in aucs else abs(aucs[0] - aucs[1])


PROGRAM = Program(
    name="hot",
    about=__doc__,
    room="about 10 GB",
    parts={"training": blocks.measure, "costs": costs.measure},
    given=given,
    scale=Scale,
    goals=(
        Goal(
            "rank: hits by access above the offline rate",
            f"{_TRAINED}/rank/hit_rate_by_access - training/trace/offline_rate",
            ">= -2 points",
            unit=100,
        ),
        Goal(
            "samples/s of the best : all cached", f"max {_TRAINED}/{_OTHERS}/ratio", ">= 0.9 times"
        ),
        Goal("counting on a core", "costs/counter/ids_per_s", ">= 5 M ids/s", unit=1e-6),
        Goal("recall of the hot set's accesses by a sample", "costs/sample/recall", ">= 0.9"),
        Goal("classifying on a core", "costs/classifier/ids_per_s", ">= 1 M ids/s", unit=1e-6),
        Goal(
            "hot/cold: AUC beside that of the order",
            f"max {_TRAINED}/{_HOT_COLD}/auc_difference",
            "<= 0.002",
        ),
    ),
    derive=derive,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

"""The goals of look-ahead, and the aggregated results of its cells.

A step is **at the bound** if its median is at most 5 % or 0.5 ms, whichever is more, above the
median of the contestant with all rows cached.
"""

import statistics
from typing import Any

from tests.bench.report import Goal, Results

NAMES = ("lookahead", "lru", "lfu", "static", "bound")
_BOUND_SHARE = 1.05
_BOUND_MS = 0.5

Cell = dict[str, Any]


def step_ms(cell: Cell, name: str) -> float:
    return float(cell["contestants"][name]["step_ms"])


def at_bound(cell: Cell) -> bool:
    """Say whether the session's step is at the bound."""
    bound = step_ms(cell, "bound")
    return step_ms(cell, "lookahead") <= max(_BOUND_SHARE * bound, bound + _BOUND_MS)


def derive(results: Results) -> None:
    """Say of the cells in which preparation fits, and of the others, how many are at the bound, the
    least hit rate, and the session's step over each other contestant's: the median, and the worst
    over LRU's."""
    for name, fits in (("fits", True), ("does_not_fit", False)):
        chosen = [cell for cell in results.get("cells", []) if cell["fits"] is fits]
        if not chosen:
            continue
        over = {
            other: [step_ms(cell, "lookahead") / step_ms(cell, other) for cell in chosen]
            for other in NAMES[1:]
        }
        steps = [cell["contestants"]["lookahead"]["a_step"] for cell in chosen]
        results.setdefault("preparation", {})[name] = {
            "cells": len(chosen),
            "at_bound": sum(map(at_bound, chosen)),
            **{other: statistics.median(ratios) for other, ratios in over.items()},
            "worst_over_lru": max(over["lru"]),
            "least_hit_rate": min(step["lookup_hits"] / step["lookup_keys"] for step in steps),
        }


_FITS = "preparation/fits"
GOALS = (
    Goal(
        "preparation fits: share of cells at the bound", f"{_FITS}/at_bound : {_FITS}/cells", ">= 1"
    ),
    Goal("preparation fits: least hit rate at lookup", f"{_FITS}/least_hit_rate", ">= 1"),
    Goal("look-ahead : LRU, the worst cell", "max preparation/*/worst_over_lru", "<= 1.03 times"),
    Goal(
        "waits for nothing: the longest wait : computation",
        "max network/*/ways/none/wait_share",
        "<= 0.03",
    ),
    Goal("knee of the capacity sweep", "max sweep/*/knee_sets", "<= 8 working sets"),
    *(
        Goal(f"planning of 50,000 {keys}", f"planner/{case}/stages_ms_50k/plan", "<= 1 ms")
        for case, keys in (("resident", "resident keys"), ("missing", "keys, victims logged"))
    ),
)

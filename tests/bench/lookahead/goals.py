"""The goals of look-ahead, and what its cells come to.

A step is **at the bound** when its median is no more than 5 % or 0.5 ms, whichever is more, above
that of the contestant which has everything cached.
"""

import statistics
from typing import Any

from tests.bench.report import Goal, NotMeasuredError, Results, figure

NAMES = ("lookahead", "lru", "lfu", "static", "bound")
_BOUND_SHARE = 1.05
_BOUND_MS = 0.5
_LRU_SHARE = 1.03

Cell = dict[str, Any]


def step_ms(cell: Cell, name: str) -> float:
    return float(cell["contestants"][name]["step_ms"])


def at_bound(cell: Cell) -> bool:
    """Say whether the session's step is at the bound."""
    bound = step_ms(cell, "bound")
    return step_ms(cell, "lookahead") <= max(_BOUND_SHARE * bound, bound + _BOUND_MS)


def to(cell: Cell, name: str) -> float:
    """Return the session's step over another contestant's."""
    return step_ms(cell, "lookahead") / step_ms(cell, name)


def _cells(results: Results) -> list[Cell]:
    cells: list[Cell] = figure(results, "cells")
    return cells


def _share_at_bound(results: Results) -> float:
    fitting = [cell for cell in _cells(results) if cell["fits"]]
    if not fitting:
        raise NotMeasuredError("a cell in which preparation fits")
    return sum(map(at_bound, fitting)) / len(fitting)


def _worst_to_lru(results: Results) -> float:
    return max(to(cell, "lru") for cell in _cells(results))


def _least_hit_rate(results: Results) -> float:
    steps = [cell["contestants"]["lookahead"]["a_step"] for cell in _cells(results) if cell["fits"]]
    if not steps:
        raise NotMeasuredError("a cell in which preparation fits")
    return min(float(step["lookup_hits"] / step["lookup_keys"]) for step in steps)


def _knee(results: Results) -> float:
    knees = [found["knee_sets"] for found in figure(results, "sweep").values()]
    if None in knees:
        raise NotMeasuredError("a knee")
    return float(max(knees))


def _most_wait_share(results: Results) -> float:
    """Return how much longer a step with waits="none" is than its computation, at most."""
    return max(cell["ways"]["none"]["wait_share"] for cell in figure(results, "network"))


GOALS = (
    Goal("preparation fits: share of cells at the bound", _share_at_bound, ">= 1"),
    Goal("preparation fits: least hit rate at lookup", _least_hit_rate, ">= 1"),
    Goal("look-ahead : LRU, the worst cell", _worst_to_lru, f"<= {_LRU_SHARE:g} times"),
    Goal("waits for nothing: the longest wait : computation", _most_wait_share, "<= 0.03"),
    Goal("knee of the capacity sweep", _knee, "<= 8 working sets"),
    *(
        Goal(f"planning of 50,000 {keys}", f"planner/{case}/stages_ms_50k/plan", "<= 1 ms")
        for case, keys in (("resident", "resident keys"), ("missing", "keys, victims logged"))
    ),
)


def derive(results: Results) -> None:
    """Say of the cells in which preparation fits, and of the others, how many are at the bound, and
    the median of the session's step over each other contestant's."""
    for name, fits in (("fits", True), ("does_not_fit", False)):
        chosen = [cell for cell in results.get("cells", []) if cell["fits"] is fits]
        if chosen:
            over = {other: statistics.median(to(c, other) for c in chosen) for other in NAMES[1:]}
            at = {"cells": len(chosen), "at_bound": sum(map(at_bound, chosen))}
            results.setdefault("preparation", {})[name] = at | over

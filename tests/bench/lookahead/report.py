"""The goals of look-ahead, and the table that is printed.

A step is **at the bound** when its median is no more than 5 % or 0.5 ms, whichever is more, above
that of the contestant which has everything cached.
"""

import math
import statistics
from collections.abc import Iterable
from typing import Any

from tests.bench.report import Goal, NotMeasuredError, Results, at, closing_lines, figure

NAMES = ("lookahead", "lru", "lfu", "static", "bound")
_BOUND_SHARE = 1.05
_BOUND_MS = 0.5
_LRU_SHARE = 1.03
_ENGINE_STAGES = ("note", "evict", "plan", "exchange", "insert")

Cell = dict[str, Any]


def step_ms(cell: Cell, name: str) -> float:
    """Return the median step of a contestant."""
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
    return max(
        cell["ways"]["none"]["wait_ms"] / cell["ways"]["none"]["computed_ms"]
        for cell in figure(results, "network")
    )


GOALS = (
    Goal("preparation fits: share of cells at the bound", _share_at_bound, ">= 1"),
    Goal("preparation fits: least hit rate at lookup", _least_hit_rate, ">= 1"),
    Goal("look-ahead : LRU, the worst cell", _worst_to_lru, f"<= {_LRU_SHARE:g} times"),
    Goal("waits for nothing: the longest wait : computation", _most_wait_share, "<= 0.03"),
    Goal("knee of the capacity sweep", _knee, "<= 8 working sets"),
    *(
        Goal(f"planning of 50,000 {keys}", at("planner", case, "stages_ms_50k", "plan"), "<= 1 ms")
        for case, keys in (("resident", "resident keys"), ("missing", "keys, victims logged"))
    ),
)


def judge(results: Results) -> list[dict[str, Any]]:
    """Return every goal with its figure."""
    return [goal.judge(results) for goal in GOALS]


def _cell_lines(cells: list[Cell]) -> list[str]:
    lines = [
        "median step, ms; times the bound; whether look-ahead is at the bound where preparation "
        "fits under the computation, and how long preparation takes",
        f"{'':42}"
        + "".join(f"{name:>17}" for name in NAMES)
        + f"{'prepared':>11}  fits  bound LRU     rows read, LRU's",
    ]
    before = None
    for cell in cells:
        place = cell["locality"], cell["cache_share"]
        if place != before:
            lines.append(
                f"{place[0]}, cache {place[1]:.1%} ({cell['slots']:,} slots, "
                f"{cell['slots'] / cell['working_set']:.1f} working sets)"
            )
        before = place
        lines.append(_cell_line(cell))
    return lines


def _cell_line(cell: Cell) -> str:
    bound = step_ms(cell, "bound")
    times = "".join(
        f"{step_ms(cell, name):10.2f}{f'({step_ms(cell, name) / bound:.2f})':>7}" for name in NAMES
    )
    case = f"    latency {cell['latency_ms']:g} ms, computing {cell['computation_ms']:g} ms"
    prepared = sum(cell["stages_ms"].values())
    fits, reached = "yes" if cell["fits"] else "no", "ok" if at_bound(cell) else "ABOVE"
    lru = "ok" if to(cell, "lru") <= _LRU_SHARE else "SLOWER"
    rows = "".join(f"{_rows_read(cell, name):10,.0f}" for name in ("lookahead", "lru"))
    return f"{case:42}{times}{prepared:11.2f}  {fits:4}  {reached:5} {lru:6}{rows}"


def _rows_read(cell: Cell, name: str) -> float:
    """Return how many rows a contestant brought into its cache, a step."""
    return float(cell["contestants"][name]["a_step"].get("rows_read", math.nan))


def _sweep_lines(sweep: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in sweep.items():
        knee = found["knee_sets"]
        lines.append(
            f"capacity sweep, {name}: knee at "
            + ("none" if knee is None else f"{knee:g} working sets")
        )
        lines += [
            f"    {point['sets']:5.2f} sets, {point['slots']:9,} slots: "
            + ", ".join(f"{who} {step_ms(point, who):.2f}" for who in point["contestants"])
            + f" ms; prepared in {sum(point['stages_ms'].values()):.2f} ms"
            for point in found["points"]
        ]
    return lines


def _planner_lines(planner: dict[str, Any]) -> list[str]:
    lines = ["planner: ms for 50,000 unique keys; all but collect are the engine's"]
    for found in planner.values():
        stages = found["stages_ms_50k"]
        lines.append(
            f"    {found['cache_share']:.0%} cached, of {found['keys']:,} keys a step "
            f"{found['collected_rows']:,.0f} missing: "
            + ", ".join(f"{stage} {ms:.3f}" for stage, ms in stages.items())
            + f"; the engine's {sum(stages[stage] for stage in _ENGINE_STAGES):.3f}"
        )
    return lines


def _network_lines(cells: list[Cell]) -> list[str]:
    lines = ["a step's median wait, ms, over a network; (share of the computation)"]
    for cell in cells:
        ways = ", ".join(
            f"{way} {found['wait_ms']:.2f} ({found['wait_ms'] / found['computed_ms']:.0%})"
            for way, found in cell["ways"].items()
        )
        lines.append(
            f"    {cell['delay_ms']:g} ms each way, computing {cell['computation_ms']:g} ms, "
            f"{cell['unique_rows']:,} rows: {ways}"
        )
    return lines


def _summary_lines(cells: list[Cell]) -> list[str]:
    lines = []
    for fits in (True, False):
        chosen = [cell for cell in cells if cell["fits"] is fits]
        if not chosen:
            continue
        ratios = ", ".join(
            f"{name} {_middle(to(c, name) for c in chosen):.2f}" for name in NAMES[1:]
        )
        lines.append(
            f"preparation {'fits' if fits else 'does not fit'}: {len(chosen)} cells, "
            f"{sum(map(at_bound, chosen))} at the bound; look-ahead's step over others', median: "
            + ratios
        )
    return lines


def _middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def table(results: Results) -> str:
    """Return the text that is printed at the end."""
    cells = results.get("cells", [])
    lines = _cell_lines(cells) if cells else []
    lines += _sweep_lines(results.get("sweep", {}))
    lines += _planner_lines(results["planner"]) if "planner" in results else []
    lines += _network_lines(results["network"]) if "network" in results else []
    return "\n".join([*lines, "", *_summary_lines(cells), *closing_lines(results)])

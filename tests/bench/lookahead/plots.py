"""The pictures: a step against the cache for each latency, the capacity sweep with its knee, and
what a step waits for over a network."""

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

from tests.bench.lookahead.goals import NAMES, Cell, step_ms
from tests.bench.pictures import pyplot, write
from tests.bench.report import Results

_STYLES: dict[str, dict[str, Any]] = {
    "lookahead": {"color": "tab:blue", "marker": "o", "linewidth": 2},
    "lru": {"color": "tab:orange", "marker": "s"},
    "lfu": {"color": "tab:green", "marker": "^"},
    "static": {"color": "tab:purple", "marker": "v"},
    "bound": {"color": "black", "linestyle": "--"},
}
_WAYS: dict[str, dict[str, Any]] = {
    "plain": {"color": "tab:orange", "marker": "s"},
    "late": {"color": "tab:green", "marker": "^"},
    "none": {"color": "tab:blue", "marker": "o", "linewidth": 2},
}


def draw(results: Results, stem: pathlib.Path) -> list[pathlib.Path]:
    """Write the pictures of what was measured beside `stem`; return their paths."""
    plt, paths = pyplot(), []
    cells = results.get("cells", [])
    for computation_ms in sorted({cell["computation_ms"] for cell in cells}):
        chosen = [cell for cell in cells if cell["computation_ms"] == computation_ms]
        drawn = _grid(plt, chosen, "locality", "latency_ms", _steps)
        drawn.supxlabel("cache, share of the table")
        drawn.supylabel(f"median step, ms, of which {computation_ms:g} ms compute")
        paths.append(write(plt, drawn, stem, f"step-{computation_ms:g}ms"))
    if results.get("sweep"):
        paths.append(write(plt, _capacity(plt, results["sweep"]), stem, "capacity"))
    if results.get("network"):
        drawn = _grid(plt, results["network"], "unique_rows", "computation_ms", _waits)
        drawn.supxlabel("network, ms each way")
        drawn.supylabel("median step without its computation, ms")
        paths.append(write(plt, drawn, stem, "network"))
    return paths


def _grid(
    plt: Any, cells: list[Cell], row: str, column: str, fill: Callable[[Any, list[Cell]], None]
) -> Any:
    """Return a figure whose axes, by what cells have in `row` and in `column`, share their scales;
    `fill` draws into each what its cells have."""
    rows, columns = (list(dict.fromkeys(cell[name] for cell in cells)) for name in (row, column))
    drawn, axes = plt.subplots(
        len(rows),
        len(columns),
        figsize=(4 * len(columns), 2.8 * len(rows)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax, place in zip(axes.flat, itertools.product(rows, columns), strict=True):
        fill(ax, [cell for cell in cells if (cell[row], cell[column]) == place])
        ax.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    return drawn


def _steps(ax: Any, cells: list[Cell]) -> None:
    shares = [100 * cell["cache_share"] for cell in cells]
    for name in NAMES:
        ax.plot(shares, [step_ms(c, name) for c in cells], label=name, **_STYLES[name])
    ax.set_xscale("log")
    ax.set_xticks(shares, [f"{share:g} %" for share in shares])
    ax.minorticks_off()
    ax.set_title("{locality}, cold batch {latency_ms:g} ms late".format(**cells[0]), fontsize=9)


def _waits(ax: Any, cells: list[Cell]) -> None:
    delays, computation_ms = [cell["delay_ms"] for cell in cells], cells[0]["computation_ms"]
    for way, style in _WAYS.items():
        ax.plot(delays, [cell["ways"][way]["wait_ms"] for cell in cells], label=way, **style)
    ax.axhline(0.03 * computation_ms, color="tab:red", linestyle=":", label="3 %")
    ax.set_title(f"{cells[0]['unique_rows']:,} rows, {computation_ms:g} ms compute", fontsize=9)
    ax.set_ylim(bottom=0)


def _capacity(plt: Any, sweep: dict[str, Any]) -> Any:
    """Draw one pair of axes for each locality, the knee as a line."""
    drawn, axes = plt.subplots(
        1, len(sweep), figsize=(5.5 * len(sweep), 4), squeeze=False, layout="constrained"
    )
    for ax, (where, found) in zip(axes[0], sweep.items(), strict=True):
        points = found["points"]
        sets = [point["sets"] for point in points]
        for name in points[0]["contestants"]:
            ax.plot(sets, [step_ms(p, name) for p in points], label=name, **_STYLES[name])
        if found["knee_sets"] is not None:
            label = f"knee: {found['knee_sets']:g} working sets"
            ax.axvline(found["knee_sets"], color="tab:red", linestyle=":", label=label)
        ax.set_title(where)
        ax.set_xlabel("cache, working sets of a step")
        ax.set_ylabel("median step, ms")
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
    return drawn

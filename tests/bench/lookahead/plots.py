"""The pictures: a step against the cache for each latency, the capacity sweep with its knee, and
what a step waits for over a network."""

import pathlib
from typing import Any

from tests.bench.lookahead.goals import NAMES, step_ms
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
        drawn = _steps(plt, chosen, computation_ms)
        paths.append(write(plt, drawn, stem, f"step-{computation_ms:g}ms"))
    if results.get("sweep"):
        paths.append(write(plt, _capacity(plt, results["sweep"]), stem, "capacity"))
    if results.get("network"):
        paths.append(write(plt, _network(plt, results["network"]), stem, "network"))
    return paths


def _steps(plt: Any, cells: list[dict[str, Any]], computation_ms: float) -> Any:
    """Draw a row of axes for each locality, a column for each latency."""
    localities = list(dict.fromkeys(cell["locality"] for cell in cells))
    latencies = list(dict.fromkeys(cell["latency_ms"] for cell in cells))
    drawn, axes = _grid(plt, len(localities), len(latencies))
    for row, where in enumerate(localities):
        for column, latency_ms in enumerate(latencies):
            here = [c for c in cells if c["locality"] == where and c["latency_ms"] == latency_ms]
            shares = [100 * cell["cache_share"] for cell in here]
            ax = axes[row][column]
            for name in NAMES:
                ax.plot(shares, [step_ms(c, name) for c in here], label=name, **_STYLES[name])
            ax.set_xscale("log")
            ax.set_xticks(shares, [f"{share:g} %" for share in shares])
            ax.minorticks_off()
            ax.grid(alpha=0.3)
            ax.set_title(f"{where}, cold batch {latency_ms:g} ms late", fontsize=9)
    axes[0][0].legend(fontsize=8)
    drawn.supxlabel("cache, share of the table")
    drawn.supylabel(f"median step, ms, of which {computation_ms:g} ms compute")
    return drawn


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


def _network(plt: Any, cells: list[dict[str, Any]]) -> Any:
    """Draw a row of axes for each number of rows, a column for each computation."""
    rows = sorted({cell["unique_rows"] for cell in cells})
    computations = sorted({cell["computation_ms"] for cell in cells})
    drawn, axes = _grid(plt, len(rows), len(computations))
    for row, count in enumerate(rows):
        for column, computation_ms in enumerate(computations):
            ax = axes[row][column]
            here = [
                cell
                for cell in cells
                if (cell["unique_rows"], cell["computation_ms"]) == (count, computation_ms)
            ]
            delays = [cell["delay_ms"] for cell in here]
            for way, style in _WAYS.items():
                waits = [cell["ways"][way]["wait_ms"] for cell in here]
                ax.plot(delays, waits, label=way, **style)
            ax.axhline(0.03 * computation_ms, color="tab:red", linestyle=":", label="3 %")
            ax.set_title(f"{count:,} rows, {computation_ms:g} ms compute", fontsize=9)
            ax.set_ylim(bottom=0)
            ax.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    drawn.supxlabel("network, ms each way")
    drawn.supylabel("median step without its computation, ms")
    return drawn


def _grid(plt: Any, rows: int, columns: int) -> Any:
    """Return a figure and its axes, by row and column, which share their scales."""
    return plt.subplots(
        rows,
        columns,
        figsize=(4 * columns, 2.8 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )

"""The plots: the time of a step by the size of the cache, for each latency, and the wait of a step
over a network.
"""

import itertools
import pathlib
from typing import Any

from tests.bench.lookahead.goals import NAMES, Cell, step_ms
from tests.bench.pictures import pyplot, write
from tests.bench.report import Results

_MARKERS = "os^vd"


def draw(results: Results, stem: pathlib.Path) -> list[pathlib.Path]:
    """Write the pictures of what was measured beside `stem`; return their paths."""
    plt, paths = pyplot(), []
    cells = results.get("cells", [])
    for computation_ms in sorted({cell["computation_ms"] for cell in cells}):
        chosen = [cell for cell in cells if cell["computation_ms"] == computation_ms]
        drawn = _grid(plt, [_step(cell) for cell in chosen], "locality", "latency")
        drawn.supxlabel("cache, % of the table")
        drawn.supylabel(f"median step, ms, of which {computation_ms:g} ms compute")
        paths.append(write(plt, drawn, stem, f"step-{computation_ms:g}ms"))
    if results.get("network"):
        drawn = _grid(plt, [_wait(cell) for cell in results["network"]], "rows", "computation")
        drawn.supxlabel("network, ms each way")
        drawn.supylabel("median step without its computation, ms")
        paths.append(write(plt, drawn, stem, "network"))
    return paths


def _step(cell: Cell) -> dict[str, Any]:
    return {
        "locality": cell["locality"],
        "latency": f"cold batch {cell['latency_ms']:g} ms late",
        "x": 100 * cell["cache_share"],
        "lines": {name: step_ms(cell, name) for name in NAMES},
    }


def _wait(cell: Cell) -> dict[str, Any]:
    return {
        "rows": f"{cell['unique_rows']:,} rows",
        "computation": f"{cell['computation_ms']:g} ms compute",
        "x": cell["delay_ms"],
        "lines": {way: found["wait_ms"] for way, found in cell["ways"].items()}
        | {"3 %": 0.03 * cell["computation_ms"]},
    }


def _grid(plt: Any, points: list[dict[str, Any]], row: str, column: str) -> Any:
    """Return a figure whose axes, by what points have in `row` and in `column`, share their scales;
    each has the lines of its points over their x."""
    rows, columns = (list(dict.fromkeys(one[name] for one in points)) for name in (row, column))
    size = (4 * len(columns), 2.8 * len(rows))
    drawn, axes = plt.subplots(
        len(rows), len(columns), figsize=size, sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for ax, place in zip(axes.flat, itertools.product(rows, columns), strict=True):
        here = [one for one in points if (one[row], one[column]) == place]
        for name, marker in zip(here[0]["lines"], _MARKERS, strict=False):
            ys = [one["lines"][name] for one in here]
            ax.plot([one["x"] for one in here], ys, marker=marker, label=name)
        ax.set_title(", ".join(place), fontsize=9)
        ax.grid(alpha=0.3)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize=8)
    return drawn

"""Displays a profile: stats by table, and curves as text (plotext) and as PNG (matplotlib).

Text and PNG show the same plot: several curves over one axis of sizes. The axis spans orders of
magnitude, so it is logarithmic; the curves are shares from 0 to 1. The extra `data` installs both
packages. If a picture cannot be drawn, the command ends with an error before it computes the
result. If a text plot cannot be drawn, a line with the reason replaces the plot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore.profiles.archive import replace_file
from embstore.profiles.profile import Profile, TableProfile
from embstore.version import pip_install

TEXT_COLUMNS, TEXT_LINES = 78, 18
"""The size of the smallest usual terminal."""
_MARKERS = ("*", "o", "x", "+", "#")
_TICKS_MAX = 7
_Y_TICKS = [0.0, 0.25, 0.5, 0.75, 1.0]
_SLACK = 1e-9
TOP_SHARE = 0.01
_LEAST_SHARE = 1e-5
_POINTS = 101
_JSON_SHARES = (0.0001, 0.001, 0.01, 0.015, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NEEDED = f"needs more: {pip_install('data')}"


@dataclass(frozen=True)
class Curve:
    """One line of a plot."""

    name: str
    x: NDArray[np.float64]
    """The sizes, ascending. Values of 0 or below cannot be drawn on the axis, and are left out."""
    y: NDArray[np.float64]
    """Shares, from 0 to 1."""

    def drawn(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the points that can be drawn on the axis."""
        return self.x[self.x > 0], self.y[self.x > 0]


@dataclass(frozen=True)
class Plot:
    """Curves over one axis."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    x_is_share: bool = True
    """Whether the axis has shares, which are labelled in per cent."""


def text(plot: Plot) -> str:
    """Return the plot as lines without colours, or one line that names the missing package.

    plotext has one figure for the whole process, so only one thread at a time may call this
    function.
    """
    try:
        from plotext import figure, terminal
    except ModuleNotFoundError:
        return f"(a plot here {_NEEDED})"
    figure.clear.all()
    terminal.limit(False, False)  # the text must not depend on the terminal's width
    figure.plot_size(TEXT_COLUMNS, TEXT_LINES)
    figure.legend(False)  # the legend would cover the curves
    legend = ""
    for marker, curve in zip(cycle(_MARKERS), plot.curves, strict=False):
        x, y = curve.drawn()
        signal = figure.signal(np.log10(x).tolist(), y.tolist(), marker=marker)
        signal.lines(True)
        figure.draw(signal)
        legend += f"   {marker} {curve.name}"
    figure.title(f"{plot.title}   {legend}" if len(plot.curves) > 1 else plot.title)
    figure.label(plot.x_label, "x")
    low, high = _decades(plot.curves)
    figure.ruler("x").lim(low, high)
    figure.ruler("x").ticks(*_ticks(low, high, plot))
    figure.ruler("y").lim(0, 1)
    figure.ruler("y").ticks(_Y_TICKS, [f"{tick:.0%}" for tick in _Y_TICKS])
    lines = figure.build().string(colorless=True).splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _decades(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the two ends of the axis as powers of ten, which differ even if there is only one
    point."""
    x = np.log10(np.concatenate([[*curve.drawn()[0]] for curve in curves] or [[1.0]]))
    low, high = (float(x.min()), float(x.max())) if len(x) else (0.0, 0.0)
    return (low, high) if high > low else (low - 1, high)


def _ticks(low: float, high: float, plot: Plot) -> tuple[list[float], list[str]]:
    """Return as many whole powers of ten as fit on the axis, and their labels."""
    decades = range(ceil(low - _SLACK), floor(high + _SLACK) + 1)
    decades = decades[:: -(-len(decades) // _TICKS_MAX) or 1]
    written = [
        f"{10.0 ** (place + 2):g} %" if plot.x_is_share else f"{10.0**place:g}" for place in decades
    ]
    return [float(place) for place in decades], written


def check_drawing(path: Path) -> None:
    """Raise InvalidArgumentError if no picture can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(f"--picture: drawing {path} {_NEEDED}") from exc


def write_picture(path: Path, plots: Sequence[Plot]) -> None:
    """Write plots side by side as a PNG, for any suffix of the file's name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0 * len(plots), 5.0), layout="constrained")
    for axes, plot in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
        _draw(axes, plot)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    replace_file(path, drawn.getvalue())


def _draw(axes: Any, plot: Plot) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import PercentFormatter

    colours = colormaps["turbo"](np.linspace(0.05, 0.95, len(plot.curves)))
    for curve, colour in zip(plot.curves, colours, strict=True):
        axes.plot(*curve.drawn(), label=curve.name, color=colour, linewidth=1.2)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label, xscale="log", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    if plot.x_is_share:
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", ncols=1 + len(plot.curves) // 14)


def known_rows(table: TableProfile) -> int:
    """Return a table's number of rows; if it was not given, return the number of rows that were
    seen."""
    return table.rows or len(table.keys)


def table_facts(table: TableProfile) -> dict[str, Any]:
    """Return the stats of a table as JSON values."""
    return {
        "rows": table.rows or None,
        "accesses": table.accesses,
        "distinct": len(table.keys),
        "error": table.error,
        "zipf_exponent": table.zipf_exponent(),
        "top_1_percent": table.top_share(ceil(TOP_SHARE * known_rows(table))),
        "coverage": {"rows": list(_JSON_SHARES), "accesses": table.coverage(_JSON_SHARES).tolist()},
    }


def coverage_plot(profile: Profile, *, by_table: bool) -> Plot:
    """Return a plot of the share of accesses over the share of rows, for all tables together, or
    also for each table."""
    shares = np.geomspace(_LEAST_SHARE, 1, _POINTS)
    curves = [Curve("all tables", shares, overall_coverage(profile, shares))]
    if by_table:
        curves += [
            Curve(name, shares, table.coverage(shares)) for name, table in profile.tables.items()
        ]
    return Plot("accesses by the most accessed rows", "share of rows", "of accesses", curves)


def overall_coverage(profile: Profile, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of accesses that the most accessed rows of all tables get, for each given
    share of rows, (s,)."""
    tables = profile.tables.values()
    counts = np.sort(np.concatenate([np.empty(0, np.int64), *(t.counts for t in tables)]))[::-1]
    sums = np.concatenate([[0], np.cumsum(counts, dtype=np.float64)])
    wanted = np.rint(shares * sum(map(known_rows, tables)))
    taken = sums[np.clip(wanted, 0, len(counts)).astype(np.int64)]
    return np.asarray(taken / max(1, sum(table.accesses for table in tables)))

"""The picture: hit rates beside the offline one, and where a step's time goes."""

import pathlib
from typing import Any

from tests.bench.hot.blocks import PARTS
from tests.bench.hot.contestants import BOUND
from tests.bench.pictures import pyplot, write
from tests.bench.report import Results

_COLORS = ("tab:gray", "tab:blue", "lightgray", "tab:orange", "tab:purple")


def draw(results: Results, stem: pathlib.Path) -> list[pathlib.Path]:
    """Write the picture of the training beside `stem`; return its path, or nothing."""
    if "training" not in results:
        return []
    plt = pyplot()
    drawn, (left, right) = plt.subplots(1, 2, figsize=(13, 4.5), layout="constrained")
    _hits(left, results["training"])
    _times(right, results["training"]["contestants"])
    return [write(plt, drawn, stem, "policies")]


def _hits(ax: Any, training: dict[str, Any]) -> None:
    found = {name: one for name, one in training["contestants"].items() if name != BOUND}
    for place, rate in enumerate(("access", "unique")):
        values = [100 * one[f"hit_rate_by_{rate}"] for one in found.values()]
        lefts = [index + 0.4 * (place - 0.5) for index in range(len(found))]
        ax.bar(lefts, values, 0.4, label=f"by {rate}", color=f"C{place}")
    offline = 100 * training["trace"]["offline_rate"]
    ax.axhline(offline, color="black", linestyle="--", label=f"offline, {offline:.2f} % by access")
    ax.set_xticks(range(len(found)), list(found), rotation=30, ha="right")
    ax.set_ylabel("hits of the training lookups, %")
    lowest = min(100 * one["hit_rate_by_unique"] for one in found.values())
    ax.set_ylim(max(0, lowest - 10), 110)
    ax.grid(axis="y", alpha=0.3)
    ax.legend(fontsize=8, ncols=3, loc="upper center")


def _times(ax: Any, found: dict[str, Any]) -> None:
    bottoms = [0.0] * len(found)
    for part, color in zip(PARTS, _COLORS, strict=True):
        values = [one["step_ms"][part] for one in found.values()]
        ax.bar(list(found), values, 0.7, bottom=bottoms, label=part, color=color)
        bottoms = [low + value for low, value in zip(bottoms, values, strict=True)]
    for index, one in enumerate(found.values()):
        ax.text(index, bottoms[index], f"{one['ratio']:.2f}", ha="center", va="bottom", fontsize=8)
    ax.set_xticks(range(len(found)), list(found), rotation=30, ha="right")
    ax.set_ylabel("ms of a step; above, samples/s : bound")
    ax.grid(axis="y", alpha=0.3)
    ax.set_ylim(top=1.3 * max(bottoms))
    ax.legend(fontsize=8, ncols=len(PARTS), loc="upper center")

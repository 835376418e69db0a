"""The picture of transports: bytes a second against the size of a call."""

import pathlib
from typing import Any

from tests.bench.pictures import pyplot, write


def draw(results: dict[str, Any], stem: pathlib.Path) -> list[pathlib.Path]:
    """Write the picture, if sizes were measured; return its path.

    Raises SkippedError: matplotlib is not installed.
    """
    sizes = results["transports"].get("sizes")
    if not sizes:
        return []
    plt = pyplot()
    drawn, axes = plt.subplots(figsize=(8, 5))
    ways = dict.fromkeys(way for found in sizes.values() for way in found)
    for way in ways:
        at = [(int(size), found[way]) for size, found in sizes.items() if way in found]
        style = "--" if "bare" in way or "copy" in way else "-"
        axes.plot([x for x, _ in at], [y / 1e9 for _, y in at], style, marker=".", label=way)
    axes.set(xscale="log", yscale="log", xlabel="bytes of rows", ylabel="GB/s")
    axes.set_title("A lookup by each transport, beside bare bytes")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return [write(plt, drawn, stem, "transports")]

"""Pictures by matplotlib, if it is installed, among them the picture of the transports."""

import importlib
import pathlib
from typing import Any

from tests.bench.worker import SkippedError


def pyplot() -> Any:
    """Return matplotlib's interface, without a window; SkippedError where it is not installed."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as exc:
        raise SkippedError("matplotlib is not installed") from exc


def write(plt: Any, drawn: Any, stem: pathlib.Path, what: str) -> pathlib.Path:
    path = stem.with_name(f"{stem.name}-{what}.png")
    drawn.savefig(path, dpi=120)
    plt.close(drawn)
    return path


def transports(results: dict[str, Any], stem: pathlib.Path) -> list[pathlib.Path]:
    """Draw bytes a second against the size of a call, if sizes were measured."""
    sizes = results["transports"].get("sizes")
    if not sizes:
        return []
    plt = pyplot()
    drawn, axes = plt.subplots(figsize=(8, 5))
    for way in dict.fromkeys(way for found in sizes.values() for way in found):
        at = [(int(size), found[way]) for size, found in sizes.items() if way in found]
        style = "--" if "bare" in way or "copy" in way else "-"
        axes.plot([x for x, _ in at], [y / 1e9 for _, y in at], style, marker=".", label=way)
    axes.set(xscale="log", yscale="log", xlabel="bytes of rows", ylabel="GB/s")
    axes.set_title("A lookup by each transport, beside bare bytes")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return [write(plt, drawn, stem, "transports")]

"""Pictures by matplotlib, where it is installed."""

import importlib
import pathlib
from typing import Any

from tests.bench.worker import SkippedError


def pyplot() -> Any:
    """Return matplotlib's interface, without a window.

    Raises
    ------
    SkippedError : matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as exc:
        raise SkippedError("matplotlib is not installed") from exc


def write(plt: Any, drawn: Any, stem: pathlib.Path, what: str) -> pathlib.Path:
    """Write a picture beside `stem`, close it, and return its path."""
    path = stem.with_name(f"{stem.name}-{what}.png")
    drawn.savefig(path, dpi=120)
    plt.close(drawn)
    return path

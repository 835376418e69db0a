"""Reads a run's file (`embstore_training.history`, or the server's page), checks it, and computes
differences between its samples.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore_training.history import KIND


@dataclass(frozen=True)
class RunFile:
    """The history of a run."""

    session: dict[str, Any]
    samples: dict[str, list[float]]
    cache: dict[str, Any]
    accesses: list[dict[str, Any]]

    @property
    def steps(self) -> list[float]:
        """The last step of each span between two samples, for the spans that contain steps."""
        ends = self.samples["step"]
        return [after for before, after in pairwise(ends) if after > before]

    def total(self, name: str) -> float:
        """Return the increase of a count over the whole run."""
        values = self.samples.get(name, [0.0])
        return values[-1] - values[0]

    def rates(self, name: str, per: str = "step") -> list[float]:
        """Return the increase of a count per unit of another count, for each span between
        samples."""
        counts, units = self.samples[name], self.samples[per]
        steps = self.samples["step"]
        found = []
        for place in range(1, len(steps)):
            if steps[place] > steps[place - 1]:
                unit = units[place] - units[place - 1]
                found.append((counts[place] - counts[place - 1]) / unit if unit else 0.0)
        return found

    def named(self, prefix: str) -> list[str]:
        """Return the names of counts with this prefix, the largest totals first."""
        names = [name for name in self.samples if name.startswith(prefix)]
        return sorted(names, key=self.total, reverse=True)


def read(path: Path) -> RunFile:
    """Return the history of a run from a file.

    Raises
    ------
    InvalidArgumentError : there is no such file, or it is not the file of a run.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidArgumentError(f"{path}: expected a file of a run: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidArgumentError(
            f"{path}: expected JSON, as RunHistory.save writes: {exc}"
        ) from exc
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind != KIND:
        raise InvalidArgumentError(
            f"{path}: expected kind {KIND!r}, as RunHistory.save writes, found {kind!r}"
        )
    try:
        made = RunFile(found["session"], found["samples"], found["cache"], found["accesses"])
        _check(made.samples)
    except (KeyError, TypeError, AttributeError) as exc:
        raise InvalidArgumentError(f"{path}: the file is not whole: {exc!r}") from exc
    return made


def _check(samples: Mapping[str, Sequence[float]]) -> None:
    """Raise TypeError unless all samples are numbers, and all counts have the same number of
    samples."""
    counts = {len(values) for values in samples.values()}
    if len(counts) != 1 or "step" not in samples:
        raise TypeError("samples of different lengths")
    if not all(isinstance(value, int | float) for values in samples.values() for value in values):
        raise TypeError("samples that are not numbers")

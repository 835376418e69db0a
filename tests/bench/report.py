"""Goals, the text that is printed at the end, and the JSON file, for every benchmark here.

The text has every figure of the results, with its path in the results. Only the JSON file has what
a program says about itself, and lists too long to read.
"""

import contextlib
import json
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import sub, truediv
from typing import Any

Results = dict[str, Any]

UNTOLD = ("goals", "skipped", "failed", "scale", "hardware", "packages", "stats", "a_step", "lines")


class NotMeasuredError(LookupError):
    """A goal's figure is not among the results."""


_CHOICES: dict[str, Callable[[Iterable[float]], float]] = {"min": min, "max": max, "sum": sum}


def figure(results: Results, wanted: str) -> float:
    """Return a figure that is wanted as text; raises NotMeasuredError where one is not there.

    "lanes/redis/both_ms" is a path; "a : b" and "a - b" are of two figures; "min path", "max path"
    and "sum path" are of all that a path reaches. In a path "*" is everything at a place, and
    "torch|redis" what is there of these.
    """
    for sign, combined in ((" : ", truediv), (" - ", sub)):
        left, is_there, right = wanted.partition(sign)
        if is_there:
            return float(combined(figure(results, left), figure(results, right)))
    choice, _, path = wanted.partition(" ")
    choose = _CHOICES.get(choice)
    found = list(_reached(results, (wanted if choose is None else path).split("/")))
    if not found or None in found:
        raise NotMeasuredError(wanted)
    return float(found[0] if choose is None else choose(found))


def _reached(found: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield all that a path reaches; None for what is missing."""
    if not path:
        yield found
    elif path[0] == "*":
        for one in found.values() if isinstance(found, dict) else found:
            yield from _reached(one, path[1:])
    elif "|" in path[0]:
        for name in path[0].split("|"):
            if name in found:
                yield from _reached(found[name], path[1:])
    else:
        yield from _reached(found[path[0]], path[1:]) if path[0] in found else [None]


@dataclass(frozen=True)
class Goal:
    """A bound on one figure."""

    name: str
    wanted: str
    """The figure, as `figure` finds it."""
    goal: str
    """">= 4 times", or "<= 0.3 ms"; the unit may be missing."""
    unit: float = 1.0
    """What the figure is multiplied by."""

    def judge(self, results: Results) -> dict[str, Any]:
        """Return the figure, and whether it is reached; None where it was not measured."""
        value = reached = None
        with contextlib.suppress(NotMeasuredError):
            value = self.unit * figure(results, self.wanted)
            sign, bound = self.goal.split()[:2]
            reached = value >= float(bound) if sign == ">=" else value <= float(bound)
        return {"name": self.name, "goal": self.goal, "value": value, "reached": reached}


def judge(goals: Sequence[Goal], results: Results) -> list[dict[str, Any]]:
    return [goal.judge(results) for goal in goals]


def _lines(found: Any, path: str = "") -> Iterator[str]:
    """Yield a paragraph for the figures that stand beside each other, behind the path to them."""
    if isinstance(found, list):
        found = dict(enumerate(found))
    told = {str(name): value for name, value in found.items() if name not in UNTOLD}
    inner = {name: value for name, value in told.items() if _has_figures(value)}
    if own := ", ".join(f"{name} {_text(told[name])}" for name in told if name not in inner):
        yield from textwrap.wrap(f"{path}: {own}", 110, subsequent_indent="    ")
    for name, value in inner.items():
        yield from _lines(value, f"{path} {name}".strip())


def _has_figures(value: Any) -> bool:
    inside = value if isinstance(value, list) else [value]
    return any(isinstance(one, dict) for one in inside)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(results: Results) -> str:
    """Return the text that is printed at the end: figures, goals, what was skipped, what broke."""
    lines = [*_lines(results), ""]
    for goal in results["goals"]:
        outcome = {True: "reached", False: "MISSED", None: "not measured"}[goal["reached"]]
        value = "" if goal["value"] is None else f"{goal['value']:.3f}"
        lines.append(f"{goal['name']:52}{value:>12}  {goal['goal']:24}{outcome}")
    lines += [f"skipped: {name}: {why}" for name, why in results["skipped"].items()]
    return "\n".join(lines + [f"FAILED: {name}: {why}" for name, why in results["failed"].items()])


def write_json(results: Results, path: pathlib.Path) -> None:
    """Write the results; what a store's stats hold that JSON does not know becomes text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, default=str) + "\n")

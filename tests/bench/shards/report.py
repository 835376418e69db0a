"""The goals of shards, and the table that is printed."""

from typing import Any

from tests.bench.report import Goal, NotMeasuredError, Results, at, closing_lines, figure

_MB = 1e6


def _split_ms(results: Results) -> float:
    found = figure(results, "router")
    if not found:
        raise NotMeasuredError("more shards than one")
    return float(max(one["split_ms"] for one in found.values()))


GOALS = (
    Goal("a step over one shard : one server", at("steps", "1", "ratio"), "<= 1.1 times"),
    Goal("to find the shards of a step's keys", _split_ms, "<= 1 ms"),
)


def judge(results: Results) -> list[dict[str, Any]]:
    """Return every goal with its figure."""
    return [goal.judge(results) for goal in GOALS]


def _count_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{'shards':8}{'':10}{'calls':>8}{'MB up':>10}{'MB down':>10}  calls by verb, a step"]
    for shards, ways in found.items():
        for way, one in ways.items():
            verbs = ", ".join(f"{verb} {calls:g}" for verb, calls in one["verbs"].items())
            lines.append(
                f"{shards:8}{way:10}{one['calls']:8g}{one['up_bytes'] / _MB:10.3f}"
                f"{one['down_bytes'] / _MB:10.3f}  {verbs}"
            )
    return lines


def _router_lines(found: dict[str, Any]) -> list[str]:
    names = ("split_ms", "lookup_ms", "update_ms", "copy_ms")
    lines = ["the router's own CPU, ms: " + ", ".join(name.removesuffix("_ms") for name in names)]
    for shards, one in found.items():
        lines.append(f"{shards:8}" + "".join(f"{one[name]:10.3f}" for name in names))
    return lines


def _step_lines(found: dict[str, Any]) -> list[str]:
    lines = ["a step, ms, and its ratio to that without a router; quartiles of rounds"]
    for name, one in found.items():
        low, _, high = one["ratio_of_rounds"]
        lines.append(
            f"{name:8}{1e3 * one['step_s']:10.2f}{one['ratio']:8.3f}   {low:.3f} - {high:.3f}"
        )
    return lines


def _growth_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"{'':8}{'rows':>10}{'s':>8}{'rows/s':>10}  a write meanwhile, ms: median, longest",
    ]
    for name, one in found.items():
        lines.append(
            f"{name:8}{one['rows']:10,}{one['seconds']:8.1f}{one['rows'] / one['seconds']:10,.0f}"
            f"  {1e3 * one['write_s']:8.1f}{1e3 * one['longest_write_s']:10.1f}"
        )
    return lines


_LINES = {
    "counts": _count_lines,
    "router": _router_lines,
    "steps": _step_lines,
    "growth": _growth_lines,
}


def table(results: Results) -> str:
    """Return the text that is printed at the end."""
    lines: list[str] = []
    for name, of in _LINES.items():
        if name in results:
            lines += of(results[name])
    return "\n".join([*lines, "", *closing_lines(results)])

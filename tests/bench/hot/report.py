"""The goals of frequencies, and the table that is printed."""

from typing import Any

from tests.bench.hot.blocks import PARTS
from tests.bench.hot.contestants import BOUND
from tests.bench.report import Goal, NotMeasuredError, Results, at, closing_lines, figure

_MIB = 1 << 20


def _trained(results: Results) -> dict[str, Any]:
    found: dict[str, Any] = figure(results, "training", "contestants")
    return found


def to_offline(results: Results, name: str) -> float:
    """Return by how many points a contestant's hit rate by access is above the offline one."""
    rate = figure(results, "training", "contestants", name, "hit_rate_by_access")
    return float(100 * (rate - figure(results, "training", "trace", "offline_rate")))


def best_ratio(results: Results) -> tuple[str, float]:
    """Return who is nearest to the bound's samples/s, and the ratio."""
    ratios = {n: found["ratio"] for n, found in _trained(results).items() if n != BOUND}
    if not ratios:
        raise NotMeasuredError("a contestant beside the bound")
    name = max(ratios, key=lambda name: ratios[name])
    return name, float(ratios[name])


def worst_auc_difference(results: Results) -> float:
    """Return how far the AUC of hot/cold training is from that of the bound, at most."""
    found = _trained(results)
    aucs = [one["auc"] for name, one in found.items() if name.startswith("hot-")]
    if not aucs or None in aucs or found[BOUND]["auc"] is None:
        raise NotMeasuredError("AUCs")
    return float(max(abs(auc - found[BOUND]["auc"]) for auc in aucs))


GOALS = (
    Goal(
        "rank: hits by access above the offline rate",
        lambda results: to_offline(results, "rank"),
        ">= -2 points",
    ),
    Goal("samples/s of the best : all cached", lambda r: best_ratio(r)[1], ">= 0.9 times"),
    Goal("counting on a core", at("costs", "counter", "ids_per_s", unit=1e-6), ">= 5 M ids/s"),
    Goal("recall of the hot set's accesses by a sample", at("costs", "sample", "recall"), ">= 0.9"),
    Goal(
        "classifying on a core", at("costs", "classifier", "ids_per_s", unit=1e-6), ">= 1 M ids/s"
    ),
    Goal("hot/cold: AUC beside that of the order", worst_auc_difference, "<= 0.002"),
)


def judge(results: Results) -> list[dict[str, Any]]:
    """Return every goal with its figure."""
    return [goal.judge(results) for goal in GOALS]


def _trace_lines(trace: dict[str, Any]) -> list[str]:
    hot = trace["hot_set"]
    return [
        f"trace: {trace['samples']:,} samples, {trace['accesses']:,} accesses to "
        f"{trace['distinct']:,} of {trace['rows']:,} rows; {trace['slots']:,} slots "
        f"({trace['slots_share']:.2%})",
        f"offline, the most accessed rows of this trace: {trace['offline_rate']:.2%} by access",
        f"hot set: {hot['rows']:,} rows of {hot['threshold']} accesses or more, "
        f"{hot['bytes'] / _MIB:.1f} MiB, {hot['accesses']:.2%} of the accesses",
    ]


_TITLES = ("access", "unique", "points", "read", "MiB", "written", "MiB", "replica", "calls")


def _contestant_lines(results: Results) -> list[str]:
    found = results["training"]["contestants"]
    lines = [
        "hits of the training lookups in %, points above offline; rows and MiB from storage and to "
        "the log; MiB of the replica; calls of the store; AUC",
        f"{'':14}" + "".join(f"{title:>10}" for title in _TITLES) + f"{'AUC':>9}",
    ]
    for name, one in found.items():
        cells = [
            f"{100 * one['hit_rate_by_access']:.2f}",
            f"{100 * one['hit_rate_by_unique']:.2f}",
            f"{to_offline(results, name):+.2f}",
            f"{one['rows_read']:,}",
            f"{one['bytes_read'] / _MIB:.1f}",
            f"{one['rows_written']:,}",
            f"{one['bytes_written'] / _MIB:.1f}",
            f"{one['replica_bytes'] / _MIB:.1f}",
            f"{one['store_calls']:,}",
        ]
        auc = "" if one["auc"] is None else f"{one['auc']:.4f}"
        lines.append(f"{name:14}" + "".join(f"{cell:>10}" for cell in cells) + f"{auc:>9}")
    return lines


def _pace_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        "samples/s and their ratio to the bound's, medians of rounds; ms of a step; hot samples",
        f"{'':14}{'samples/s':>12}{'ratio':>8}"
        + "".join(f"{part:>9}" for part in PARTS)
        + f"{'hot':>8}",
    ]
    for name, one in found.items():
        parts = "".join(f"{one['step_ms'][part]:9.2f}" for part in PARTS)
        hot = f"{one['hot_sample_share']:8.1%}" if "hot_sample_share" in one else ""
        lines.append(f"{name:14}{one['samples_per_s']:12,.0f}{one['ratio']:8.3f}{parts}{hot}")
    return lines


def _warm_lines(found: dict[str, Any]) -> list[str]:
    return [
        f"{name}: warmed {one['warmed']['rows']:,} rows in {one['warmed']['seconds']:.2f} s, "
        f"{one['warmed']['rows'] / one['warmed']['seconds']:,.0f} rows/s"
        for name, one in found.items()
        if one["warmed"]
    ]


def _cost_lines(costs: dict[str, Any]) -> list[str]:
    counter, classifier = costs["counter"], costs["classifier"]
    lines = [
        f"counting: {counter['ids_per_s'] / 1e6:.1f} M ids/s a core, all counters hold "
        f"{counter['memory_bytes'] / _MIB:.0f} MiB, never above "
        f"{counter['memory_bytes_max'] / _MIB:.0f} MiB",
        f"a sample of {costs['sample']['rate']:.0%} recalls {costs['sample']['recall']:.2%} of the "
        "accesses of the true hot rows",
        f"classifying: {classifier['ids_per_s'] / 1e6:.1f} M ids/s a core, "
        f"{classifier['memory_bytes'] / _MIB:.1f} MiB; packing: "
        f"{costs['packer']['samples_per_s']:,.0f} samples/s",
    ]
    lines += [
        f"lookup at count_rate {rate}: {one['lookup_ms']:.2f} ms, {one['ratio']:.3f} times"
        for rate, one in costs["count_rate"].items()
    ]
    return lines


def table(results: Results) -> str:
    """Return the text that is printed at the end."""
    lines: list[str] = []
    if "training" in results:
        found = results["training"]["contestants"]
        lines += _trace_lines(results["training"]["trace"])
        lines += _contestant_lines(results) + _pace_lines(found) + _warm_lines(found)
        lines.append("nearest to the bound: {} ({:.3f})".format(*best_ratio(results)))
    lines += _cost_lines(results["costs"]) if "costs" in results else []
    return "\n".join([*lines, "", *closing_lines(results)])

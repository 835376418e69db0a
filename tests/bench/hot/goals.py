"""The goals of frequencies."""

from typing import Any

from tests.bench.hot.contestants import BOUND
from tests.bench.report import Goal, NotMeasuredError, Results, figure


def _trained(results: Results) -> dict[str, Any]:
    found: dict[str, Any] = figure(results, "training", "contestants")
    return found


def _points_above_offline(results: Results) -> float:
    rate = _trained(results)["rank"]["hit_rate_by_access"]
    return float(100 * (rate - figure(results, "training", "trace", "offline_rate")))


def _best_ratio(results: Results) -> float:
    return float(max(one["ratio"] for name, one in _trained(results).items() if name != BOUND))


def _worst_auc_difference(results: Results) -> float:
    """Return how far the AUC of hot/cold training is from that of the bound, at most."""
    found = _trained(results)
    aucs = [one["auc"] for name, one in found.items() if name.startswith("hot-")]
    if None in aucs or found[BOUND]["auc"] is None:
        raise NotMeasuredError("AUCs")
    return float(max(abs(auc - found[BOUND]["auc"]) for auc in aucs))


GOALS = (
    Goal("rank: hits by access above the offline rate", _points_above_offline, ">= -2 points"),
    Goal("samples/s of the best : all cached", _best_ratio, ">= 0.9 times"),
    Goal("counting on a core", "costs/counter/ids_per_s", ">= 5 M ids/s", unit=1e-6),
    Goal("recall of the hot set's accesses by a sample", "costs/sample/recall", ">= 0.9"),
    Goal("classifying on a core", "costs/classifier/ids_per_s", ">= 1 M ids/s", unit=1e-6),
    Goal("hot/cold: AUC beside that of the order", _worst_auc_difference, "<= 0.002"),
)

"""The capacity sweep: caches from one working set to eight, and the knee.

A working set is the unique keys of a step. With one, the session can prepare the next step only in
what the running one leaves; with a few more it prepares whole steps ahead, and more than that buys
little. The **knee** is the smallest cache from which on the step stays at the bound
(`goals.at_bound`).
"""

from typing import Any

from tests.bench.lookahead.blocks import settle, take_blocks
from tests.bench.lookahead.contestants import Plain
from tests.bench.lookahead.goals import at_bound
from tests.bench.lookahead.grid import Progress, bound_of, contestants_of, describe
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import Written
from tests.bench.lookahead.trace import Trace, locality


def measure(written: Written, scale: Scale, progress: Progress) -> dict[str, Any]:
    """Return, by locality, a point for each cache, and the knee in working sets or None."""
    found = {}
    for exponent in scale.sweep_exponents:
        progress(f"capacity sweep, {locality(exponent)}")
        trace = Trace(scale, exponent)
        with bound_of(written, trace, scale) as bound:
            points = [_point(written, scale, trace, sets, bound) for sets in scale.sweep_sets]
        found[locality(exponent)] = {"points": points, "knee_sets": knee(points)}
    return found


def _point(written: Written, scale: Scale, trace: Trace, sets: float, bound: Plain) -> Any:
    wanted = round(sets * trace.working_set())
    measured = scale.measured_steps(scale.sweep_computation_ms)
    with contestants_of(written, trace, scale, wanted, ("lookahead", "lru")) as held:
        contestants = {**held, "bound": bound}
        blocks = scale.rounds * (scale.warm_steps + measured)
        trace.prepare(scale.settle_steps + blocks + scale.lookahead_steps)
        steps, _ = take_blocks(
            contestants,
            settle(contestants, scale.settle_steps),
            rounds=scale.rounds,
            warm=scale.warm_steps,
            measured=measured,
            computation_s=1e-3 * scale.sweep_computation_ms,
            latency_s=1e-3 * scale.sweep_latency_ms,
        )
        slots = held["lru"].opened.pool()["slots"]
    point = describe(steps, trace.working_set(), slots, scale.sweep_computation_ms)
    return {"sets": sets, "slots_in_sets": slots / trace.working_set()} | point


def knee(points: list[dict[str, Any]]) -> float | None:
    """Return the fewest working sets from which on every point is at the bound."""
    found = None
    for point in reversed(points):
        if not at_bound(point):
            break
        found = point["sets"]
    return found

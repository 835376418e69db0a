"""All combinations of locality, cache, latency and computation, with a cell for each.

Each combination of a locality and a cache has fresh stores, which are filled and brought to a
steady state once; then all latencies and computations are measured on these stores. The bound is
filled once per locality, because it never evicts a row.

**Fits.** Preparing a step is said to fit under the computation of a step if two conditions are met.
The seconds that the session's stages took for a step, including waits for the storage, are at most
the seconds of the computation. And the cache has room for two working sets: the rows of the step
that computes, which may not leave, and those of the next step.

**Sweep.** One case is measured with caches of one to eight working sets. A working set is the
unique keys of a step. With one working set, the session can prepare the next step only in the room
that the running step leaves. With a few more, it prepares whole steps ahead, and still larger
caches gain little. The **knee** is the smallest cache from which on the step stays at the bound
(`goals.at_bound`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.bench.lookahead.blocks import Steps, settle, take_blocks
from tests.bench.lookahead.contestants import LookAhead, Plain, Static
from tests.bench.lookahead.goals import at_bound
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.stores import Written
from tests.bench.lookahead.trace import Trace, locality

Progress = Callable[[str], None]

STAGES = ("note", "evict", "plan", "collect", "exchange", "insert")
_SETS_THAT_FIT = 2.0


@contextmanager
def bound_of(written: Written, trace: Trace, scale: Scale) -> Iterator[Plain]:
    """Hold the contestant that has all rows in its cache."""
    opened = written.open("bound", scale.rows)
    try:
        bound = Plain(opened, trace, scale)
        resident = opened.pool()["resident_rows"]
        assert resident == scale.rows, f"the bound has {resident} rows of {scale.rows}"
        yield bound
    finally:
        opened.close()


@contextmanager
def contestants_of(
    written: Written, trace: Trace, scale: Scale, slots: int, names: tuple[str, ...]
) -> Iterator[dict[str, Plain]]:
    """Hold the contestants of one cache."""
    kinds: dict[str, tuple[type[Plain], str]] = {
        "lookahead": (LookAhead, "lru"),
        "lru": (Plain, "lru"),
        "lfu": (Plain, "lfu"),
        "static": (Static, "lfu"),
    }
    held: dict[str, Plain] = {}
    try:
        for name in names:
            kind, policy = kinds[name]
            held[name] = kind(written.open(name, slots, policy), trace, scale)
        yield held
    finally:
        for contestant in held.values():
            contestant.close()


def prepared_ms(steps: Steps) -> dict[str, float]:
    """Return the milliseconds that each stage of the session took for a step."""
    count = len(steps.parts)
    return {stage: 1e3 * steps.counts.get(f"{stage}_s", 0.0) / count for stage in STAGES}


def describe(found: dict[str, Steps], working_set: int, slots: int, computation_ms: float) -> Any:
    """Return a cell's figures: of each contestant, and whether preparation fits."""
    stages_ms = prepared_ms(found["lookahead"])
    fits = sum(stages_ms.values()) <= computation_ms and slots >= _SETS_THAT_FIT * working_set
    return {
        "working_set": working_set,
        "slots": slots,
        "computation_ms": computation_ms,
        "stages_ms": stages_ms,
        "fits": fits,
        "contestants": {name: steps.summary() for name, steps in found.items()},
    }


def measure(written: Written, scale: Scale, progress: Progress) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    for exponent in scale.exponents:
        trace = Trace(scale, exponent)
        with bound_of(written, trace, scale) as bound:
            for share in scale.cache_shares:
                progress(f"{locality(exponent)}, cache {share:.1%}")
                place = {"locality": locality(exponent), "cache_share": share}
                names = ("lookahead", "lru", "lfu", "static")
                with contestants_of(written, trace, scale, int(share * scale.rows), names) as held:
                    cases = [(s, c) for s in scale.latencies_ms for c in scale.computations_ms]
                    found = cells_of({**held, "bound": bound}, trace, scale, cases)
                    cells += [place | cell for cell in found]
    return cells


def sweep(written: Written, scale: Scale, progress: Progress) -> dict[str, Any]:
    """Return, by locality, a point for each cache, and the knee in working sets or None."""
    found = {}
    case = (scale.sweep_latency_ms, scale.sweep_computation_ms)
    for exponent in scale.sweep_exponents:
        progress(f"capacity sweep, {locality(exponent)}")
        trace, points = Trace(scale, exponent), []
        with bound_of(written, trace, scale) as bound:
            for sets in scale.sweep_sets:
                slots = round(sets * trace.working_set())
                with contestants_of(written, trace, scale, slots, ("lookahead", "lru")) as held:
                    contestants = {**held, "bound": bound}
                    (point,) = cells_of(contestants, trace, scale, [case])
                points.append({"sets": sets} | point)
        found[locality(exponent)] = {"points": points, "knee_sets": knee(points)}
    return found


def cells_of(
    contestants: dict[str, Plain], trace: Trace, scale: Scale, cases: Sequence[tuple[float, float]]
) -> Iterator[dict[str, Any]]:
    """Yield a cell for each latency and computation, in milliseconds, on the stores of a cache."""
    steps = sum(scale.warm_steps + scale.measured_steps(computing) for _, computing in cases)
    trace.prepare(scale.settle_steps + scale.rounds * steps + scale.lookahead_steps)
    next_batch = settle(contestants, scale.settle_steps)
    slots = contestants["lru"].opened.pool()["slots"]
    for latency_ms, computation_ms in cases:
        found, next_batch = take_blocks(
            contestants,
            next_batch,
            rounds=scale.rounds,
            warm=scale.warm_steps,
            measured=scale.measured_steps(computation_ms),
            computation_s=1e-3 * computation_ms,
            latency_s=1e-3 * latency_ms,
        )
        cell = describe(found, trace.working_set(), slots, computation_ms)
        yield {"latency_ms": latency_ms} | cell


def knee(points: list[dict[str, Any]]) -> float | None:
    """Return the fewest working sets from which on every point is at the bound."""
    found = None
    for point in reversed(points):
        if not at_bound(point):
            break
        found = point["sets"]
    return found

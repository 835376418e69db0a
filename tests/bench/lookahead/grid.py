"""All combinations of locality, cache, latency and computation: a cell for each.

A locality and a cache have fresh stores, filled and settled once; then latencies and computations
follow each other on them. The bound is filled once a locality, for it forgets nothing.

**Fits.** Preparing a step is said to fit under the computation of one when the seconds that the
session's stages took for a step, waits for the storage among them, are no more than the computation
is, and when the cache has room for two working sets: the rows of the step that computes, which may
not leave, and those of the next.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.bench.lookahead.blocks import Steps, settle, take_blocks
from tests.bench.lookahead.contestants import LookAhead, Plain, Static
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
    """Return the cells."""
    cells: list[dict[str, Any]] = []
    for exponent in scale.exponents:
        trace = Trace(scale, exponent)
        with bound_of(written, trace, scale) as bound:
            for share in scale.cache_shares:
                progress(f"{locality(exponent)}, cache {share:.1%}")
                place = {"locality": locality(exponent), "cache_share": share}
                cells += [place | cell for cell in _cells(written, scale, trace, share, bound)]
    return cells


def _cells(
    written: Written, scale: Scale, trace: Trace, share: float, bound: Plain
) -> Iterator[dict[str, Any]]:
    slots = int(share * scale.rows)
    names = ("lookahead", "lru", "lfu", "static")
    with contestants_of(written, trace, scale, slots, names) as held:
        contestants = {**held, "bound": bound}
        trace.prepare(scale.settle_steps + _steps_of_a_cache(scale) + scale.lookahead_steps)
        next_batch = settle(contestants, scale.settle_steps)
        slots = held["lru"].opened.pool()["slots"]
        for latency_ms in scale.latencies_ms:
            for computation_ms in scale.computations_ms:
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


def _steps_of_a_cache(scale: Scale) -> int:
    blocks = [scale.warm_steps + scale.measured_steps(ms) for ms in scale.computations_ms]
    return scale.rounds * len(scale.latencies_ms) * sum(blocks)

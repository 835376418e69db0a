"""Turns: in every round each thing that is compared has one turn, and the order rotates from round
to round, so that a slow moment of the machine affects all of them equally.

In its turn, a kind of call is made a few times, after one call that is not timed.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


def _nothing(*_: Any) -> None:
    """Prepare nothing, and tell nobody."""


def in_turns(
    what: Sequence[Any], rounds: int, progress: Callable[[str], None] = _nothing
) -> Iterator[tuple[int, Any]]:
    """Yield (round, one) for each of `what` in every round. No garbage is collected meanwhile."""
    gc.collect()
    gc.disable()
    try:
        for index in range(rounds if what else 0):
            progress(f"round {index + 1} of {rounds}")
            first = index % len(what)
            for one in (*what[first:], *what[:first]):
                yield index, one
    finally:
        gc.enable()


def _no_engine() -> float:
    return 0.0


@dataclass(frozen=True)
class Kind:
    """One thing that is timed: `call`. `prepare` runs before its calls of a round, untimed."""

    call: Callable[[], Any]
    prepare: Callable[[], None] = _nothing
    engine_s: Callable[[], float] = _no_engine
    """Seconds of the engine so far. Not asked between calls: to answer costs a server more than
    some calls do, and leaves its processor's caches cold."""


Spent = list[tuple[float, float]]
"""Of each call its seconds, and the engine's: the mean over its turn."""


def take_turns(kinds: dict[str, Kind], rounds: int, calls: int) -> dict[str, Spent]:
    """Return what `rounds` times `calls` calls of each kind took."""
    spent: dict[str, Spent] = {name: [] for name in kinds}
    for _, name in in_turns(list(kinds), rounds):
        spent[name] += _turn(kinds[name], calls)
    return spent


def _turn(kind: Kind, calls: int) -> Spent:
    kind.prepare()
    before = kind.engine_s()
    seconds = [seconds_of(kind.call) for _ in range(1 + calls)]
    engine_s = (kind.engine_s() - before) / len(seconds)
    return [(spent, engine_s) for spent in seconds[1:]]


def medians_ms(spent: dict[str, Spent]) -> dict[str, float]:
    """Return the median milliseconds of a call of each kind."""
    return {
        name: 1e3 * statistics.median(seconds for seconds, _ in calls)
        for name, calls in spent.items()
    }


def latencies(spent: dict[str, Spent]) -> dict[str, dict[str, float]]:
    """Return the median and the 99 % of each kind, in milliseconds."""
    return {
        name: {
            "median_ms": median_ms,
            "p99_ms": 1e3 * statistics.quantiles((s for s, _ in spent[name]), n=100)[98],
        }
        for name, median_ms in medians_ms(spent).items()
    }


def seconds_of(call: Callable[..., Any], *arguments: Any) -> float:
    begin = time.perf_counter()
    result = call(*arguments)  # freed after the clock has stopped
    spent = time.perf_counter() - begin
    del result
    return spent

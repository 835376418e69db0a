"""Calls that are compared take turns, in one process.

In every round each kind runs a few calls, in an order that turns from round to round, so that a
slow moment of the machine falls on all of them alike. One call goes before each kind's untimed.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _nothing() -> None:
    """Prepare nothing."""


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
    names = list(kinds)
    spent: dict[str, Spent] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for index in range(rounds):
            first = index % len(names)
            for name in names[first:] + names[:first]:
                spent[name] += _turn(kinds[name], calls)
    finally:
        gc.enable()
    return spent


def _turn(kind: Kind, calls: int) -> Spent:
    kind.prepare()
    before = kind.engine_s()
    seconds = [_seconds_of(kind.call) for _ in range(1 + calls)]
    engine_s = (kind.engine_s() - before) / len(seconds)
    return [(spent, engine_s) for spent in seconds[1:]]


def _seconds_of(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    result = call()  # freed after the clock has stopped
    spent = time.perf_counter() - begin
    del result
    return spent

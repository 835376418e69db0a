"""Kernels and copies by the device's clock, and the gaps between them, in which the device has no
work.

torch's profiler (CUPTI) records all work of the process on all streams, whichever library has
queued the work. There are steps of three sizes whose rows are all resident, with both calls and
with each call alone, and steps with misses, whose rows are in level two. A gap is the time from the
end of all earlier work to the beginning of the next work, and is counted for the next work. The
emulated device records only launches.
"""

import contextlib
import dataclasses
import importlib.util
import pathlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.bench.gpu import tiers
from tests.bench.gpu.machine import Machine, timer_of
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.step import Step
from tests.bench.gpu.stores import DeviceStore
from tests.bench.worker import SkippedError

BATCHES = 4
KINDS_MAX = 32
"""Lines of a step, those first that take most with the gaps before them."""


class Event(NamedTuple):
    """Work of the device, from one microsecond to another."""

    begin: float
    end: float
    name: str


Record = Callable[[DeviceStore, Callable[[], Any]], list[Event]]
"""Does some work, waits for its end, and returns the events, by their begin."""


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return time and lines of each kind of step.

    Raises
    ------
    SkippedError : torch is not installed, or reaches no GPU.
    """
    record = _launches if scale.emulated else _torch_recorder()
    path.mkdir()
    found = {}
    for keys in (scale.keys, *sorted(scale.call_keys, reverse=True)):
        smaller = dataclasses.replace(scale, keys=keys, step_batches=BATCHES)
        with contextlib.closing(Step(machine, smaller, path / str(keys))) as step:
            for number in range(scale.timeline_steps):
                step.both(number)
            for name in ("both", "lookup", "update"):
                call = getattr(step, name)
                found[f"{name}, {keys} keys"] = _taken(record, scale, step.store, call)
    with tiers.opened(machine, scale, tiers.PROMISED, path.parent / "tiers-timeline") as settled:
        settled.settle()
        found[tiers.PROMISED.part] = _taken(record, scale, settled.store, lambda _: settled.step())
    return found


def _taken(
    record: Record, scale: Scale, store: DeviceStore, step: Callable[[int], None]
) -> dict[str, Any]:
    store.wait()
    steps = scale.timeline_steps
    return summary(record(store, lambda: [step(number) for number in range(steps)]), steps)


def _launches(store: DeviceStore, work: Callable[[], Any]) -> list[Event]:
    with timer_of(store.device).recording() as spans:
        work()
        store.wait()
    return [Event(1e6 * begin, 1e6 * end, name) for name, begin, end in spans]


def _torch_recorder() -> Record:
    if importlib.util.find_spec("torch") is None:
        raise SkippedError("torch is not installed")
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        raise SkippedError("torch reaches no GPU")
    torch.zeros(1, device="cuda")  # its context; it is not recorded

    def record(store: DeviceStore, work: Callable[[], Any]) -> list[Event]:
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            work()
            store.wait()
        cuda = torch.autograd.DeviceType.CUDA
        return sorted(
            Event(e.time_range.start, e.time_range.end, e.name)
            for e in recorded.events()
            if e.device_type == cuda
        )

    return record


def summary(events: list[Event], steps: int) -> dict[str, Any]:
    """Return microseconds of a step, first to last and those with work, and a line for each kind of
    work: how often a step has it, what it takes, and the gaps before it."""
    if not events:
        return {"span_us": 0.0, "busy_us": 0.0, "events": 0.0, "lines": []}
    count: dict[str, int] = defaultdict(int)
    took: dict[str, float] = defaultdict(float)
    gaps: dict[str, float] = defaultdict(float)
    end = events[0].begin
    for event in events:
        count[event.name] += 1
        took[event.name] += event.end - event.begin
        gaps[event.name] += max(event.begin - end, 0.0)
        end = max(end, event.end)
    span_us = (end - events[0].begin) / steps
    first = sorted(count, key=lambda name: -took[name] - gaps[name])[:KINDS_MAX]
    return {
        "span_us": span_us,
        "busy_us": span_us - sum(gaps.values()) / steps,
        "events": len(events) / steps,
        "lines": [
            f"{count[name] / steps:6.1f} x {took[name] / count[name]:8.1f} us, "
            f"gaps before {gaps[name] / steps:7.1f}  {name[:70]}"
            for name in first
        ],
    }

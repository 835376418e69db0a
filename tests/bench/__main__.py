"""The benchmark of embstore: the store, embedded and served, beside other systems; the service
beside bare gRPC; its storage beside the bare disk.

``python -m tests.bench`` measures every contender whose packages are installed, prints all figures
and the goals, and writes a JSON file into ``docs/figures/``. Each contender has a process of its
own, so its thread pool, allocator and processor flags do not change the figures of another
contender. The parent process lets the contenders run in rounds, one at a time, so a slow minute of
the machine affects all of them equally.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from tests.bench import memory, rounds
from tests.bench.goals import BASE_LANE, GOALS
from tests.bench.pictures import transports
from tests.bench.program import Program, Run
from tests.bench.scale import Scale
from tests.bench.worker import Worker

CONTENDERS = {
    "engine": "engine",
    "service": "engine",
    "shared": "engine",
    "torch": "peer_tables",
    "fbgemm": "peer_tables",
    "redis": "peer_redis",
}
"""What takes part in rounds, and its module, which is told the name."""
PARTS = {
    "wire": ("one_key", "bulk", "crowd"),
    "transports": ("one_key", "sizes", "readers"),
    "storage": ("write_back", "checkpoint", "digest", "checking", "cold_rows"),
    "space": ("sizes",),
    "durability": ("served", "embedded", "replay"),
    "standby": ("following",),
    "stalls": ("served", "drained"),
    "neighbour": ("beside",),
    "torch_adapter": ("steps",),
    "files": ("tables",),
}
"""What is measured one after the other in one process, by its module."""


def measure(run: Run, wanted: Sequence[str]) -> None:
    """Measure contenders in rounds, then memory, then the parts."""
    run.scale = dataclasses.replace(run.scale, data_dir=str(run.folder))
    run.results["scale"] = dataclasses.asdict(run.scale)
    run.results |= {name: {} for name in ("lanes", "memory", *PARTS)}
    _contenders(run, [name for name in CONTENDERS if name in wanted])
    for share in memory.SHARES if "memory" in wanted else ():
        found = run.attempt(f"memory {share}", memory.measure, share, run.scale)
        if found is not None:
            run.results["memory"][share] = found
    for module in PARTS:
        if module in wanted:
            _parts(run, module)


def _contenders(run: Run, names: list[str]) -> None:
    """Start the contenders one after the other, then let them run in rounds."""
    workers: dict[str, Worker] = {}
    try:
        for name in names:
            worker = run.attempt(name, Worker, CONTENDERS[name], run.scale, name)
            if worker is not None:
                workers[name] = worker
        times, broken = rounds.play(workers, run.scale, run.progress)
        run.results["lanes"] = {lane: rounds.summary(spent) for lane, spent in times.items()}
        run.results["failed"] |= broken
    finally:
        for worker in workers.values():
            worker.close()


def _parts(run: Run, module: str) -> None:
    """Measure a module's parts one after the other in one process."""
    worker = run.attempt(module, Worker, module, run.scale)
    if worker is None:
        return
    try:
        for part in PARTS[module]:
            found = run.attempt(f"{module}: {part}", worker.ask, part)
            if found is not None:
                run.results[module][part] = found
            if "base_skipped" in (found or {}):
                run.results["skipped"]["cold_rows in the base"] = found["base_skipped"]
    finally:
        worker.close()


def derive(results: dict[str, Any]) -> None:
    """Say of each lane how many times as long as the embedded store it takes."""
    base = results["lanes"].get(BASE_LANE)
    for lane in results["lanes"].values() if base else ():
        lane["times"] = lane["both_ms"] / base["both_ms"]


PROGRAM = Program(
    name="",
    about=__doc__,
    room="about 20 GB, on the disk to measure",
    parts={**CONTENDERS, "memory": memory, **PARTS},
    measured=measure,
    scale=Scale,
    goals=GOALS,
    derive=derive,
    plots=transports,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

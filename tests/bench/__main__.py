"""The store beside its peers, the wire and the disk; see the package, and `tests.bench.program`."""

import dataclasses
import sys
from collections.abc import Sequence

from tests import bench
from tests.bench import plots, report, resident, rounds, scale
from tests.bench.program import Program, Run
from tests.bench.worker import Worker

CONTENDERS = {
    "engine": "engine",
    "service": "service",
    "shared": "shared",
    "torch": "peer_torch",
    "fbgemm": "peer_fbgemm",
    "redis": "peer_redis",
}
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
    for share in resident.SHARES if "memory" in wanted else ():
        found = run.attempt(f"memory {share}", resident.measure, share, run.scale)
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
            worker = run.attempt(name, Worker, CONTENDERS[name], run.scale)
            if worker is not None:
                workers[name] = worker
        times, broken = rounds.play(workers, run.scale, run.progress)
        run.results["lanes"] = {lane: rounds.summary(spent) for lane, spent in times.items()}
        run.results["failed"] |= broken
        for name in workers.keys() - broken.keys():
            notes = run.attempt(f"{name}: notes", workers[name].ask, "notes")
            for lane, note in (notes or {}).items():
                run.results["lanes"][lane] |= note
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
            found = run.attempt(part, worker.ask, part)
            if found is not None:
                run.results[module][part] = found
            if "base_skipped" in (found or {}):
                run.results["skipped"]["cold_rows in the base"] = found["base_skipped"]
    finally:
        worker.close()


PROGRAM = Program(
    name="",
    about=bench.__doc__ or "",
    room="about 20 GB, on the disk to measure",
    parts=[*CONTENDERS, "memory", *PARTS],
    measure=measure,
    scale=scale,
    report=report,
    plots=plots,
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())

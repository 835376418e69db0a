"""``python -m tests.bench [--only NAME ...] [--quick] [--json PATH] [--dir PATH]``.

The exit status is 1 when something broke. A peer that is not installed, and a goal that is missed,
are results.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.bench import hardware, report, resident, rounds
from tests.bench.scale import Scale, full, quick
from tests.bench.worker import FailedError, SkippedError, Worker

CONTENDERS = {
    "engine": "engine",
    "service": "service",
    "torch": "peer_torch",
    "fbgemm": "peer_fbgemm",
    "redis": "peer_redis",
}
PARTS = {
    "wire": ("one_key", "bulk", "crowd"),
    "storage": ("write_back", "checkpoint", "digest", "cold_rows"),
}
"""What is measured one after the other in one process, by its module."""
NAMES = (*CONTENDERS, "memory", *PARTS)
RESULTS = pathlib.Path(__file__).parent / "results"


class Run:
    """One run's results, filled part by part; what cannot run is noted and the rest goes on."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._begin = time.monotonic()
        self.results: dict[str, Any] = hardware.describe(scale.data_dir)
        self.results["scale"] = dataclasses.asdict(scale)
        sections = ("lanes", "memory", *PARTS, "skipped", "failed")
        self.results |= {name: {} for name in sections}

    def progress(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._begin:6.1f} s] {text}", flush=True)

    def attempt(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the call returns, or None with a note of why not."""
        self.progress(name)
        try:
            return call(*arguments)
        except SkippedError as exc:
            self.results["skipped"][name] = str(exc)
        except FailedError as exc:
            self.results["failed"][name] = str(exc)
        return None

    def contenders(self, names: list[str]) -> None:
        """Start the contenders one after the other, then let them run in rounds."""
        workers: dict[str, Worker] = {}
        try:
            for name in names:
                worker = self.attempt(name, Worker, CONTENDERS[name], self._scale)
                if worker is not None:
                    workers[name] = worker
            times, broken = rounds.play(workers, self._scale, self.progress)
            self.results["lanes"] = {lane: rounds.summary(spent) for lane, spent in times.items()}
            self.results["failed"] |= broken
            for name in workers.keys() - broken.keys():
                notes = self.attempt(f"{name}: notes", workers[name].ask, "notes")
                for lane, note in (notes or {}).items():
                    self.results["lanes"][lane] |= note
        finally:
            for worker in workers.values():
                worker.close()

    def memory(self) -> None:
        """Measure every cache size in a process of its own."""
        for share in resident.SHARES:
            found = self.attempt(f"memory {share}", resident.measure, share, self._scale)
            if found is not None:
                self.results["memory"][share] = found

    def parts(self, module: str) -> None:
        """Measure a module's parts one after the other in one process."""
        worker = self.attempt(module, Worker, module, self._scale)
        if worker is None:
            return
        try:
            for part in PARTS[module]:
                found = self.attempt(part, worker.ask, part)
                if found is not None:
                    self.results[module][part] = found
                if "base_skipped" in (found or {}):
                    self.results["skipped"]["cold_rows in the base"] = found["base_skipped"]
        finally:
            worker.close()


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--quick", action="store_true", help="small, to see that all runs")
    parser.add_argument("--json", type=pathlib.Path, help="where the results go")
    parser.add_argument("--dir", help="folder on the disk to measure; needs about 20 GB")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for and return the exit status."""
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.dir) as data_dir:
        run = Run((quick if arguments.quick else full)(data_dir))
        contenders = [name for name in CONTENDERS if name in arguments.only]
        if contenders:
            run.contenders(contenders)
        if "memory" in arguments.only:
            run.memory()
        for module in PARTS:
            if module in arguments.only:
                run.parts(module)
    run.results["hardware"]["load_average_end"] = os.getloadavg()
    run.results["goals"] = report.judge(run.results)
    print(report.table(run.results))
    if arguments.quick:
        print("--quick: these figures mean nothing but that everything ran")
    path = arguments.json
    if path is None and not arguments.quick:
        stamp = run.results["date"][:16].replace(":", "")
        path = RESULTS / f"{stamp}-{(run.results['git_commit'] or 'none')[:7]}.json"
    if path is not None:
        report.write_json(run.results, path)
        print(f"written: {path}")
    return 1 if run.results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.bench.gpu [--json PATH] [--quick] [--emulated] [--only NAME ...] [--dir DIR]``.

The exit status is 1 when a part broke, or the digests differ. torch that is not there, and a goal
that is missed, are results.
"""

import argparse
import dataclasses
import gc
import os
import pathlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.bench import hardware
from tests.bench.gpu import guard, kernels, peer_torch, report, step, tiers
from tests.bench.gpu.machine import Machine, packages
from tests.bench.gpu.scale import Scale, emulated, full, quick
from tests.bench.report import write_json
from tests.bench.worker import SkippedError

PARTS = ("digests", "kernels", "step", "torch", "tiers")
RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


class Run:
    """One run's results, filled part by part; what breaks is noted and the rest goes on."""

    def __init__(self, scale: Scale, folder: pathlib.Path) -> None:
        self._scale = scale
        self._folder = folder
        self._machine = Machine(scale)
        self._begin = time.monotonic()
        self.results: dict[str, Any] = hardware.describe(str(folder))
        self.results["packages"] |= packages()
        self.results["scale"] = dataclasses.asdict(scale)
        self.results["published_ms"] = report.PUBLISHED_MS | {"source": report.SOURCE}
        self.results |= {"skipped": {}, "failed": {}}

    def attempt(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the call returns, or None with a note of why not."""
        print(f"[{time.monotonic() - self._begin:6.1f} s] {name}", flush=True)
        try:
            return call(*arguments)
        except SkippedError as exc:
            self.results["skipped"][name] = str(exc)
        except Exception as exc:
            traceback.print_exc()
            self.results["failed"][name] = f"{type(exc).__name__}: {exc}"
        finally:
            gc.collect()  # pools and their arena name each other: their memory is the device's
        return None

    def measure(self, parts: list[str]) -> None:
        """Measure the parts, the ceiling first."""
        ceiling = self._keep("ceiling", kernels.ceiling, self._machine, self._scale)
        if "digests" in parts:
            self._keep("digests", guard.measure, self._machine, self._scale, self._folder)
        if "kernels" in parts and ceiling is not None:
            self._kernels(ceiling["bytes_per_s"])
        if "step" in parts:
            self._keep("step", step.measure, self._machine, self._scale, self._folder / "step")
        if "torch" in parts:
            self._keep("torch", peer_torch.measure, self._scale)
        if "tiers" in parts:
            self._keep("tiers", tiers.measure, self._machine, self._scale, self._folder / "tiers")

    def _keep(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        found = self.attempt(name, call, *arguments)
        if found is not None:
            self.results[name] = found
        return found

    def _kernels(self, ceiling: float) -> None:
        self.results["kernels"] = {}
        for dim in self._scale.dims:
            name = f"kernels, dim {dim}"
            found = self.attempt(name, kernels.verbs, self._machine, self._scale, dim, ceiling)
            if found is not None:
                self.results["kernels"][str(dim)] = found

    @property
    def status(self) -> int:
        """The exit status."""
        same = all(one["same"] for one in self.results.get("digests", {}).values())
        return 1 if self.results["failed"] or not same else 0


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=pathlib.Path, help="where the results go")
    parser.add_argument("--dir", help="folder for the stores; needs about 20 GB")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="fewer samples, under two minutes")
    sizes.add_argument("--emulated", action="store_true", help="tiny, on the emulated device")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for and return the exit status."""
    arguments = parse()
    scale = emulated() if arguments.emulated else quick() if arguments.quick else full()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.dir) as folder:
        run = Run(scale, pathlib.Path(folder))
        run.measure(arguments.only)
    run.results["hardware"]["load_average_end"] = os.getloadavg()
    run.results["goals"] = [] if arguments.emulated else report.judge(run.results)
    print(report.table(run.results))
    if arguments.emulated:
        print("--emulated: these figures mean nothing but that everything ran")
        return run.status
    path = arguments.json
    if path is None and not arguments.quick:
        stamp = run.results["date"][:16].replace(":", "")
        path = RESULTS / f"gpu-{stamp}-{(run.results['git_commit'] or 'none')[:7]}.json"
    if path is not None:
        write_json(run.results, path)
        print(f"written: {path}")
    return run.status


if __name__ == "__main__":
    sys.exit(main())

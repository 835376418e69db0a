"""``python -m tests.bench.hot [--quick] [--only NAME ...] [--json PATH] [--dir PATH]``.

The exit status is 1 when a part broke. A goal that is missed is a result.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.bench import hardware
from tests.bench.hot import costs, plots, report, training
from tests.bench.hot.scale import Scale, full, quick
from tests.bench.hot.stores import Written
from tests.bench.hot.trace import Trace
from tests.bench.report import write_json
from tests.bench.worker import SkippedError

PARTS = {"training": training.measure, "costs": costs.measure}
RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


class Run:
    """One run's results, filled part by part; what breaks is noted and the rest goes on."""

    def __init__(self, scale: Scale, folder: pathlib.Path) -> None:
        self._scale = scale
        self._begin = time.monotonic()
        self.results: dict[str, Any] = hardware.describe(str(folder))
        self.results["scale"] = dataclasses.asdict(scale)
        self.results |= {"skipped": {}, "failed": {}}
        self.progress("samples are drawn and counted")
        self._trace = Trace(scale)
        self._known = training.count(self._trace, scale)
        self.progress("every row is written")
        self._written = Written(folder, scale)
        self.results["written_s"] = self._written.seconds

    def progress(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._begin:6.1f} s] {text}", flush=True)

    def attempt(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the call returns, or None with a note of why not."""
        try:
            return call(*arguments)
        except SkippedError as exc:
            self.results["skipped"][name] = str(exc)
        except Exception as exc:
            traceback.print_exc()
            self.results["failed"][name] = f"{type(exc).__name__}: {exc}"
        return None

    def measure(self, parts: list[str]) -> None:
        """Measure the parts."""
        given = self._written, self._trace, self._known, self._scale, self.progress
        for name in parts:
            found = self.attempt(name, PARTS[name], *given)
            if found is not None:
                self.results[name] = found
        self.progress("measured")


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hot", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="small, under a minute")
    parser.add_argument("--json", type=pathlib.Path, help="where the results go, plots beside it")
    parser.add_argument("--dir", help="folder for the stores; needs about 10 GB")
    return parser.parse_args()


def _path_of(arguments: argparse.Namespace, results: dict[str, Any]) -> pathlib.Path | None:
    if arguments.json is not None or arguments.quick:
        path: pathlib.Path | None = arguments.json
        return path
    stamp = results["date"][:16].replace(":", "")
    return RESULTS / f"hot-{stamp}-{(results['git_commit'] or 'none')[:7]}.json"


def main() -> int:
    """Run what was asked for and return the exit status."""
    arguments = parse()
    scale = quick() if arguments.quick else full()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.dir) as folder:
        run = Run(scale, pathlib.Path(folder))
        run.measure(arguments.only)
    results = run.results
    results["hardware"]["load_average_end"] = os.getloadavg()
    results["goals"] = report.judge(results)
    path = _path_of(arguments, results)
    drawn: list[pathlib.Path] = []
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = run.attempt("plots", plots.draw, results, path.with_suffix("")) or []
        write_json(results, path)
    print(report.table(results))
    if arguments.quick:
        print("--quick: these figures mean nothing but that everything ran")
    for written in [path, *drawn] if path is not None else []:
        print(f"written: {written}")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""A benchmark as a program: its arguments, its parts one after the other, and where results go.

The exit status is 1 when a part broke. A goal that is missed is a result.
"""

import argparse
import dataclasses
import os
import pathlib
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tests.bench import hardware
from tests.bench.report import write_json
from tests.bench.worker import SkippedError

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

Parts = Mapping[str, Callable[[], Any]]
"""What measures each part."""


class Run:
    """One run's results, filled part by part; what breaks is noted and the rest goes on."""

    def __init__(self, scale: Any, folder: pathlib.Path) -> None:
        self.scale = scale
        self.folder = folder
        self.results: dict[str, Any] = hardware.describe(str(folder))
        self.results["scale"] = dataclasses.asdict(scale)
        self.results |= {"skipped": {}, "failed": {}}
        self._begin = time.monotonic()

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

    def measure(self, parts: Parts, wanted: Sequence[str]) -> None:
        """Measure the parts that are wanted."""
        for name in wanted:
            found = self.attempt(name, parts[name])
            if found is not None:
                self.results[name] = found
        self.progress("measured")


@dataclasses.dataclass(frozen=True)
class Program:
    """``python -m tests.bench.NAME [--quick] [--only NAME ...] [--json PATH] [--dir PATH]``."""

    name: str
    about: str
    room: str
    """What the folder of stores takes."""
    parts: Sequence[str]
    prepare: Callable[[Run], Parts]
    scale: ModuleType
    """Has `full()` and `quick()`, dataclasses."""
    report: ModuleType
    """Has `judge(results)` and `table(results)`."""
    plots: ModuleType
    """Has `draw(results, path)`, which returns the pictures' paths."""

    def main(self) -> int:
        """Run what was asked for and return the exit status."""
        arguments = self._parse()
        scale = self.scale.quick() if arguments.quick else self.scale.full()
        with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.dir) as folder:
            run = Run(scale, pathlib.Path(folder))
            run.measure(self.prepare(run), arguments.only)
        results = run.results
        results["hardware"]["load_average_end"] = os.getloadavg()
        results["goals"] = self.report.judge(results)
        path = self._path_of(arguments, results)
        drawn: list[pathlib.Path] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            drawn = run.attempt("plots", self.plots.draw, results, path.with_suffix("")) or []
            write_json(results, path)
        print(self.report.table(results))
        if arguments.quick:
            print("--quick: these figures mean nothing but that everything ran")
        for written in [path, *drawn] if path is not None else []:
            print(f"written: {written}")
        return 1 if results["failed"] else 0

    def _parse(self) -> argparse.Namespace:
        prog = f"python -m tests.bench.{self.name}"
        parser = argparse.ArgumentParser(prog=prog, description=self.about)
        parser.add_argument("--only", nargs="+", choices=self.parts, default=self.parts)
        parser.add_argument("--quick", action="store_true", help="small, under a minute")
        parser.add_argument(
            "--json", type=pathlib.Path, help="where the results go, plots beside it"
        )
        parser.add_argument("--dir", help=f"folder for the stores; needs {self.room}")
        return parser.parse_args()

    def _path_of(
        self, arguments: argparse.Namespace, results: dict[str, Any]
    ) -> pathlib.Path | None:
        if arguments.json is not None or arguments.quick:
            path: pathlib.Path | None = arguments.json
            return path
        stamp = results["date"][:16].replace(":", "")
        return RESULTS / f"{self.name}-{stamp}-{(results['git_commit'] or 'none')[:7]}.json"

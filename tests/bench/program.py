"""A benchmark as a program: its arguments, its parts, which run one after the other, and the path
of its results.

The exit status is 1 if a part failed with an error. A contender that is not installed, or a goal
that is missed, is an ordinary result.
"""

import argparse
import dataclasses
import gc
import os
import pathlib
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.bench import hardware, report
from tests.bench.sizes import of_size
from tests.bench.worker import SkippedError

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "figures"
NOTHING = "small: its figures mean nothing but that everything ran"


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
        self.progress(name)
        try:
            return call(*arguments)
        except SkippedError as exc:
            self.results["skipped"][name] = str(exc)
        except Exception as exc:
            traceback.print_exc()
            self.results["failed"][name] = f"{type(exc).__name__}: {exc}"
        finally:
            gc.collect()  # pools and their arena name each other: their memory may be a device's
        return None

    def keep(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Attempt a call, keep what it returns among the results, and return it."""
        found = self.attempt(name, call, *arguments)
        if found is not None:
            self.results[name] = found
        return found


@dataclasses.dataclass(frozen=True)
class Program:
    """``python -m tests.bench[.NAME] [--SIZE] [--only NAME ...] [--json PATH] [--dir PATH]``."""

    name: str
    about: str | None
    room: str
    """What the folder of stores takes."""
    parts: Mapping[str, Any]
    """What measures each part, in their order."""
    scale: type
    """A dataclass, as `sizes.of_size` takes it."""
    goals: Sequence[report.Goal]
    given: Callable[[Run], Sequence[Any]] = lambda run: (run.scale, run.folder)
    """Makes what every part is given."""
    measured: Callable[[Run, Sequence[str]], None] | None = None
    """Measures the parts that are wanted, where they are not simply called one after the other."""
    derive: Callable[[dict[str, Any]], None] = lambda results: None
    """Adds figures that are made of others."""
    plots: Callable[[dict[str, Any], pathlib.Path], list[pathlib.Path]] | None = None
    """Draws pictures of the results beside a path, and returns theirs."""
    sizes: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"quick": NOTHING})
    """Other sizes than the full one, and what is said of them."""
    groups: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Names that stand for several parts."""

    def main(self) -> int:
        """Run what was asked for and return the exit status."""
        arguments = self.chosen()
        scale = of_size(self.scale, arguments.size)
        with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.dir) as folder:
            run = Run(scale, pathlib.Path(folder))
            (self.measured or self._measured)(run, arguments.only)
            run.progress("measured")
        results = run.results
        results["hardware"]["load_average_end"] = os.getloadavg()
        self.derive(results)
        results["goals"] = report.judge(self.goals, results)
        path = arguments.json
        if path is None and arguments.size == "full":
            path = self._path_of(results)
        written: list[pathlib.Path] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.plots is not None:
                written = run.attempt("plots", self.plots, results, path.with_suffix("")) or []
            report.write_json(results, path)
            written = [path, *written]
        print(report.table(results))
        if arguments.size != "full":
            print(f"--{arguments.size}: {self.sizes[arguments.size]}")
        for path in written:
            print(f"written: {path}")
        return 1 if results["failed"] else 0

    def _measured(self, run: Run, wanted: Sequence[str]) -> None:
        given = self.given(run)
        for name in wanted:
            run.keep(name, self.parts[name], *given)

    def chosen(self) -> argparse.Namespace:
        """Return the arguments of the command line; `only` names parts, and no groups."""
        prog = ".".join(filter(None, ["python -m tests.bench", self.name]))
        parser = argparse.ArgumentParser(prog=prog, description=self.about)
        names = [*self.parts, *self.groups]
        parser.add_argument("--only", nargs="+", choices=names, default=[*self.parts])
        sizes = parser.add_mutually_exclusive_group()
        for size, said in self.sizes.items():
            sizes.add_argument(
                f"--{size}",
                dest="size",
                action="store_const",
                const=size,
                default="full",
                help=said,
            )
        parser.add_argument("--json", type=pathlib.Path, help="where results go, plots beside it")
        parser.add_argument("--dir", help=f"folder for the stores; needs {self.room}")
        arguments = parser.parse_args()
        named = [self.groups.get(name, [name]) for name in arguments.only]
        arguments.only = list(dict.fromkeys(part for parts in named for part in parts))
        return arguments

    def _path_of(self, results: dict[str, Any]) -> pathlib.Path:
        stamp = results["date"][:16].replace(":", "")
        commit = (results["git_commit"] or "none")[:7]
        return RESULTS / ("-".join(filter(None, [self.name, stamp, commit])) + ".json")

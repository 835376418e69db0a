"""The demo: trains a DLRM through its own server or cluster, and checks every bit.

    criteo, columns, synthetic   the Criteo format: reading it, making keys, writing it
    dlrm                         the model in plain NumPy, and its quality
    frameworks                   the model's implementation: NumPy, or Torch through its adapter
    dense                        the dense check: the same tables in memory, without a store
    steps, ways                  batches, and the ways to get their rows
    training                     the training loop, with the dense check in lockstep
    serving                      the demo's own server or cluster, or a running store
    job, trial                   the description of a training, and its execution
    phases, result, showing      the output during the demo and at its end

`run` starts a server on free ports, trains through the client as any trainer would, and stops the
server again. `compare` does the same for each policy and each way to train. Importing this package
starts no process.
"""

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from embstore.errors import InvalidArgumentError
from embstore.storage.files import Files
from embstore_tools.demo import serving, synthetic, trial
from embstore_tools.demo.frameworks.registry import check_installed
from embstore_tools.demo.job import Job, jobs_of
from embstore_tools.demo.phases import Phases
from embstore_tools.demo.result import Comparison, DemoResult, HotColdResult, SessionResult
from embstore_tools.demo.serving import Served
from embstore_tools.demo.showing import show, show_comparison
from embstore_tools.demo.trial import Counted, check_readable, count_first
from embstore_tools.demo.ways import Ahead, Calls, HotCold, Way

__all__ = [
    "Ahead",
    "Calls",
    "Comparison",
    "DemoResult",
    "HotCold",
    "HotColdResult",
    "Job",
    "SessionResult",
    "Way",
    "compare",
    "run",
]


def run(
    data: Path | None = None,
    job: Job | None = None,
    *,
    directory: Path | None = None,
    report: Path | None = None,
    console: Console | None = None,
    json: bool = False,
    cluster: bool = False,
    address: str | None = None,
) -> DemoResult:
    """Run the demo, print its result, and return it; `exact` is True if all digests agree.

    Parameters
    ----------
    data : a file in the Criteo format. None: such a file is written first
    directory : keep the file and the store here; must be absent or empty. None: keep no files
    report : write the report of the session here. None: run.html in `directory`, if files are kept
    console : the console for progress and result. None: standard output
    json : print one JSON object, and no other output
    cluster : start a cluster of two shards, on Ray, instead of a server
    address : address of a running store to train with, instead of starting a server

    Raises
    ------
    InvalidArgumentError : a line of the file is malformed (the first line is checked before a
        server is started); or the framework is not installed.
    EmbstoreError : the server did not start, or refused a call.
    """
    job = job or Job()
    check_installed(job.framework)
    with _begun(data, job, directory, console, json) as (place, path, phases, shown):
        if report is None and directory is not None and isinstance(job.way, Ahead):
            report = place / "run.html"
        served = partial(serving.served, is_cluster=cluster, address=address)
        result = _trained(job, path, place / "store", phases, served, report=report)
    _end(result, show, shown, json)
    return result


def compare(
    data: Path | None = None,
    job: Job | None = None,
    *,
    hot_cold: HotCold | None = None,
    directory: Path | None = None,
    console: Console | None = None,
    json: bool = False,
) -> Comparison:
    """Run the demo on one file for each policy and each way to train, and return all results.

    Parameters
    ----------
    job : the settings of all trainings, except the policy and the way to train
    hot_cold : how the hot/cold training is done. None: with default settings
    data, directory, console, json : as in `run`; each training has a separate store in `directory`

    Raises
    ------
    The errors of `run`.
    """
    job = job or Job()
    jobs = jobs_of(job, hot_cold or HotCold())
    results: dict[str, DemoResult] = {}
    with _begun(data, job, directory, console, json) as (place, path, phases, shown):
        counted = count_first(job, path, phases)
        for number, (name, one) in enumerate(jobs.items(), 1):
            titled = phases.titled(f"{name}: ")
            store = place / f"store-{number}"
            results[name] = _trained(one, path, store, titled, serving.served, counted)
    compared = Comparison(results, count_s=counted.seconds)
    _end(compared, show_comparison, shown, json)
    return compared


def _trained(
    job: Job,
    path: Path,
    place: Path,
    phases: Phases,
    served: Callable[..., AbstractContextManager[Served]],
    counted: Counted | None = None,
    report: Path | None = None,
) -> DemoResult:
    counts_all = report is not None
    with served(place, job, phases, counts_all=counts_all) as (store, network_bytes):
        return trial.train_and_compare(
            job, store, path, phases, counted=counted, network_bytes=network_bytes, report=report
        )


@contextmanager
def _begun(
    data: Path | None, job: Job, directory: Path | None, console: Console | None, json: bool
) -> Iterator[tuple[Path, Path, Phases, Console]]:
    """Yield the directory, the file of samples, the display of phases, and the result's console."""
    if data is not None:
        check_readable(data)
    console = console or Console()
    phases = Phases(Console(quiet=True) if json else console)
    with _workplace(directory) as place, phases.shown():
        path = data or place / "train.txt"
        if data is None:
            with phases.phase("writing samples", job.samples) as advance:
                synthetic.write(path, samples=job.samples, rows=job.rows, advance=advance)
        yield place, path, phases, console


@contextmanager
def _workplace(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with TemporaryDirectory(prefix="embstore-demo-") as made:
            yield Path(made)
        return
    files = Files(directory)
    if files.exists("") and not (files.is_directory("") and not files.list("")):
        raise InvalidArgumentError(
            f"expected a directory to keep the demo in that is absent or empty, found {directory}"
        )
    files.make_directory("")
    yield directory


def _end(result: Any, show: Callable[[Any, Console], None], console: Console, json: bool) -> None:
    if not json:
        return show(result, console)
    text = json_format.dumps(result.as_json())
    console.print(text, markup=False, highlight=False, soft_wrap=True)

"""The demo: a DLRM trained through a server of its own, and checked to the bit.

    criteo, columns, synthetic   the Criteo format: read, turned into keys, written
    counting                     which rows will be accessed how often
    dlrm, mlp, adam, auc         the model in plain NumPy, and how good it is
    dense                        the check: the same tables in memory, without a store
    steps, ways                  batches, and the ways to their rows
    training                     the loop in lockstep
    job, trial                   what is to be done, and doing it, from a file to a result
    comparison                   several jobs on one file
    serving                      a server of one's own
    phases, result, showing      what is told meanwhile and at the end

`run` starts a server on free ports, trains through the client as any trainer would, and gives the
server up again; `compare` does that for each policy and each way to train. Importing this package
starts nothing.
"""

import json as json_format
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from embstore.errors import InvalidArgumentError
from embstore_server.demo import comparison, serving, synthetic
from embstore_server.demo.comparison import Comparison
from embstore_server.demo.counting import count_first
from embstore_server.demo.job import Job
from embstore_server.demo.phases import Phases
from embstore_server.demo.result import DemoResult, HotColdResult, SessionResult
from embstore_server.demo.showing import show
from embstore_server.demo.trial import check_readable, train_and_compare
from embstore_server.demo.ways import Ahead, Calls, HotCold

__all__ = [
    "Ahead",
    "Calls",
    "Comparison",
    "DemoResult",
    "HotCold",
    "HotColdResult",
    "Job",
    "SessionResult",
    "compare",
    "run",
]


def run(
    data: Path | None = None,
    job: Job | None = None,
    *,
    directory: Path | None = None,
    console: Console | None = None,
    json: bool = False,
) -> DemoResult:
    """Run the demo, print what it came to, and return it; `exact` says if all was well.

    Parameters
    ----------
    data : a file in the Criteo format; None: one is written first
    directory : keep the file and the store here, absent or empty before; None: keep nothing
    console : where to show progress and result; None: standard output
    json : print one JSON object and nothing else

    Raises
    ------
    InvalidArgumentError : a line of the file is wrong. The first one is looked at before a server
        is started.
    EmbstoreError : the server did not start, or refused a call.
    """
    job = Job() if job is None else job
    with _begun(data, directory, console, json) as (place, phases, shown):
        path = data or _written(place / "train.txt", job, phases)
        with serving.served(place / "store", job, phases) as served:
            result = train_and_compare(
                job, served.store, path, phases, network_bytes=served.network_bytes
            )
    if json:
        _print_json(shown, result.as_json())
    else:
        show(result, shown)
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
    """Run the demo for each policy and each way to train on one file, and return all results.

    Parameters
    ----------
    job : of all of them, but for policy and way
    hot_cold : how the last one is trained; None: as it is by default
    data, directory, console, json : as in `run`; each has a store of its own in `directory`

    Raises
    ------
    As `run` does.
    """
    job = Job() if job is None else job
    jobs = comparison.jobs_of(job, HotCold() if hot_cold is None else hot_cold)
    results: dict[str, DemoResult] = {}
    with _begun(data, directory, console, json) as (place, phases, shown):
        path = data or _written(place / "train.txt", job, phases)
        counted = count_first(job, path, phases)
        for number, (name, one) in enumerate(jobs.items(), 1):
            titled = phases.titled(f"{name}: ")
            with serving.served(place / f"store-{number}", one, titled) as served:
                results[name] = train_and_compare(
                    one,
                    served.store,
                    path,
                    titled,
                    counted=counted,
                    network_bytes=served.network_bytes,
                )
    compared = Comparison(results, count_s=counted.seconds)
    if json:
        _print_json(shown, compared.as_json())
    else:
        comparison.show(compared, shown)
    return compared


@contextmanager
def _begun(
    data: Path | None, directory: Path | None, console: Console | None, json: bool
) -> Iterator[tuple[Path, Phases, Console]]:
    """Return where to work, what shows the phases meanwhile, and where the result is shown."""
    if data is not None:
        check_readable(data)
    console = Console() if console is None else console
    phases = Phases(Console(quiet=True) if json else console)
    with _workplace(directory) as place, phases.shown():
        yield place, phases, console


@contextmanager
def _workplace(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with TemporaryDirectory(prefix="embstore-demo-") as made:
            yield Path(made)
        return
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise InvalidArgumentError(
            f"expected a directory to keep the demo in that is absent or empty, found {directory}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    yield directory


def _written(path: Path, job: Job, phases: Phases) -> Path:
    with phases.phase("writing samples", job.samples) as advance:
        synthetic.write(path, samples=job.samples, rows=job.rows, advance=advance)
    return path


def _print_json(console: Console, document: dict[str, Any]) -> None:
    console.print(json_format.dumps(document), markup=False, highlight=False, soft_wrap=True)

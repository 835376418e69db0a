"""The demo: a DLRM trained through a server of its own, and checked to the bit.

    criteo, columns, synthetic   the Criteo format: read, turned into keys, written
    dlrm, mlp, adam, auc         the model in plain NumPy, and how good it is
    dense                        the check: the same tables in memory, without a store
    steps                        batches, and their rows: in a session or without one
    training, job                the loop in lockstep, and the job around it
    phases, result               what is shown meanwhile and at the end

`run` starts a server on free ports, trains through the client as any trainer would, and gives the
server up again. Importing this package starts nothing.
"""

import json as json_format
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from embstore.config import Optimizer
from embstore.errors import InvalidArgumentError
from embstore_server.demo import synthetic
from embstore_server.demo.job import DEFAULT_OPTIMIZER, Job, check_readable, train_and_compare
from embstore_server.demo.phases import Phases
from embstore_server.demo.result import DemoResult, SessionResult, show
from embstore_server.demo.stores import TrainingStore

__all__ = ["DemoResult", "Job", "SessionResult", "run"]


def run(
    data: Path | None = None,
    *,
    samples: int = Job.samples,
    batch: int = Job.batch,
    dim: int = Job.dim,
    scale: float = Job.scale,
    optimizer: Optimizer | None = None,
    cache_bytes: int | None = None,
    lookahead: int | None = Job.lookahead,
    directory: Path | None = None,
    console: Console | None = None,
    json: bool = False,
) -> DemoResult:
    """Run the demo, print what it came to, and return it; `exact` says if all was well.

    Parameters
    ----------
    data : a file in the Criteo format; None: one is written first
    samples : lines of it to use at most
    batch : lines of a step; a tenth of them is held out
    dim : of the embeddings
    scale : rows of a table for each category that its column has in Criteo Kaggle, in (0, 1]
    optimizer : of the embeddings; None: row-wise Adagrad
    cache_bytes : of the server; None: a fifth of the tables
    lookahead : steps that a session announces ahead; None: train without a session
    directory : keep the file and the store here, absent or empty before; None: keep nothing
    console : where to show progress and result; None: standard output
    json : print one JSON object and nothing else

    Raises
    ------
    InvalidArgumentError : an argument, or a line of the file, is wrong. The first line is looked
        at before a server is started.
    EmbstoreError : the server did not start, or refused a call.
    """
    job = Job(
        samples,
        batch,
        dim,
        scale,
        optimizer or DEFAULT_OPTIMIZER,
        cache_bytes=cache_bytes,
        lookahead=lookahead,
    )
    if data is not None:
        check_readable(data)
    console = Console() if console is None else console
    phases = Phases(Console(quiet=True) if json else console)
    with _workplace(directory) as place, phases.shown():
        path = data or _written(place / "train.txt", job, phases)
        with _served(place / "store", job, phases) as store:
            result = train_and_compare(job, store, path, phases)
    if json:
        text = json_format.dumps(result.as_json())
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        show(result, console)
    return result


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


@contextmanager
def _served(place: Path, job: Job, phases: Phases) -> Iterator[TrainingStore]:
    """Start a server and connect to it; both end with the block."""
    from embstore_client import connect  # here, as only a run needs them
    from embstore_server.launch import ServerProcess

    with ExitStack() as running:
        with phases.phase("starting the server") as advance:
            options = ("--cache-bytes", str(job.store_cache_bytes))
            server = running.enter_context(ServerProcess(place, *options))
            store = running.enter_context(connect(server.address))
            advance(1, f"gRPC {server.address}, REST {server.admin}")
        yield store

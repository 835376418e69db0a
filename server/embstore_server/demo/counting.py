"""How often a training will access each row, counted before it begins.

Only what will be trained on is counted, batch by batch: held-out samples leave no trace in a cache,
nor in what is kept of it. So the profile's recording is that of the calls to come.
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from embstore.frequency.profile import Profile
from embstore_server.demo import criteo
from embstore_server.demo.columns import keys_by_table, table_name
from embstore_server.demo.job import Job
from embstore_server.demo.phases import Advance, Phases
from embstore_server.demo.steps import HELD_OUT_MAX, HeldOut, held_out_of


@dataclass(frozen=True)
class Counted:
    """A profile, and how long it took."""

    profile: Profile
    seconds: float


def count_first(job: Job, path: Path, phases: Phases) -> Counted:
    """Count what a job's training will access.

    Raises
    ------
    InvalidArgumentError : a line of the file is malformed.
    """
    started = perf_counter()
    with phases.phase("counting accesses", lines_trained(job, path)) as advance:
        profile = _profile(job, path, advance)
    return Counted(profile, perf_counter() - started)


def _profile(job: Job, path: Path, advance: Advance) -> Profile:
    # Here, because they read files by the demo's reader, and only a run needs them.
    from embstore_server.profiling.count import Counting, SampleCounter
    from embstore_server.profiling.readers import Chunk, Column

    rows = {table_name(column): count for column, count in enumerate(job.rows)}
    counter = SampleCounter(Counting(tuple(rows), rows=rows, batch=job.step_samples))
    for block in HeldOut().without(criteo.read(path, limit=job.samples, block=job.batch)):
        keys = keys_by_table(block.categories, job.rows)
        counter.add(Chunk(tuple(map(Column, keys.values())), str(path)))
        advance(len(block))
    return counter.profile()


def lines_trained(job: Job, path: Path) -> int:
    """Return about how many lines will be trained on: from the file's size and first lines."""
    with path.open("rb") as file:
        lines = file.readlines(1 << 20)
    whole = path.stat().st_size * len(lines) // max(1, sum(map(len, lines)))
    count = min(job.samples, whole)
    return count - min(held_out_of(count), HELD_OUT_MAX)

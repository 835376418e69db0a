"""The demo through an embedded store, for the tests of its parts."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

import embstore
from embstore_server.demo.job import Job
from embstore_server.demo.phases import Phases
from embstore_server.demo.result import DemoResult
from embstore_server.demo.trial import train_and_compare


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=terminal)


def text_of(shown: Console) -> str:
    file = shown.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def trained(
    job: Job, path: Path, directory: Path, wrapped: Any = lambda store: store
) -> DemoResult:
    """Train through a store in `directory`; `wrapped` may put something around it."""
    cache_bytes = job.store_cache_bytes
    with embstore.open(directory, cache_bytes=cache_bytes, policy=job.policy) as store:
        result = train_and_compare(job, wrapped(store), path, Phases(console()))
        store.check_integrity()
    return result

"""The demo through an embedded store, for the tests of its parts."""

import io
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import embstore
from embstore.handles.sessions import BagGradients
from embstore.handles.store import Store
from embstore_tools.demo.job import Job
from embstore_tools.demo.phases import Phases
from embstore_tools.demo.result import DemoResult
from embstore_tools.demo.trial import train_and_compare


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=terminal)


def text_of(shown: Console) -> str:
    file = shown.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


LOST = "criteo/c09"


def lose(monkeypatch: pytest.MonkeyPatch, kind: Any, verb: str) -> None:
    """Have the third call of a verb lose what it brings for one table: its last argument is
    changed."""
    whole, calls = getattr(kind, verb), count(1)

    def forgetful(self: Any, *args: Any, **options: Any) -> Any:
        *before, brought = args
        if next(calls) == 3:
            part = brought[LOST]
            if isinstance(part, np.ndarray):
                none: Any = 0 * part
            elif isinstance(part, BagGradients):
                none = part._replace(rows=0 * np.asarray(part.rows))
            else:
                none = (*(p[:0] for p in part[:3]), *part[3:])
            brought = {**brought, LOST: none}
        return whole(self, *before, brought, **options)

    monkeypatch.setattr(kind, verb, forgetful)


def open_store(job: Job, directory: Path, **options: Any) -> Store:
    """Open a store with the cache that a job has."""
    cache_bytes = job.store_cache_bytes
    return embstore.open(directory, cache_bytes=cache_bytes, policy=job.policy, **options)


def train(job: Job, store: Store, path: Path) -> DemoResult:
    result = train_and_compare(job, store, path, Phases(console()))
    store.check_integrity()
    return result


def trained(job: Job, path: Path, directory: Path) -> DemoResult:
    """Train through a store in `directory`."""
    with open_store(job, directory) as store:
        return train(job, store, path)

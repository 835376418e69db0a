"""The demo through an embedded store, for the tests of its parts."""

import io
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import embstore
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
            none = (
                0 * part
                if isinstance(part, np.ndarray)
                else (*(p[:0] for p in part[:3]), *part[3:])
            )
            brought = {**brought, LOST: none}
        return whole(self, *before, brought, **options)

    monkeypatch.setattr(kind, verb, forgetful)


def trained(job: Job, path: Path, directory: Path) -> DemoResult:
    """Train through a store in `directory`."""
    cache_bytes = job.store_cache_bytes
    with embstore.open(directory, cache_bytes=cache_bytes, policy=job.policy) as store:
        result = train_and_compare(job, store, path, Phases(console()))
        store.check_integrity()
    return result

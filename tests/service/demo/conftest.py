"""Demos without servers of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embstore
from embstore_tools.demo import serving
from embstore_tools.demo.job import Job
from embstore_tools.demo.phases import Phases
from embstore_tools.demo.serving import Served


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Have stores of this process in place of servers; return the directories asked for."""
    places: list[Path] = []

    @contextmanager
    def opened(
        place: Path, job: Job, phases: Phases, *, counts_all: bool = False, **_: Any
    ) -> Iterator[Served]:
        places.append(place)
        cache_bytes = job.store_cache_bytes
        with phases.phase("starting"):
            store = embstore.open(
                place, cache_bytes=cache_bytes, policy=job.policy, count_rate=float(counts_all)
            )
        with store:
            yield Served(store, None)

    monkeypatch.setattr(serving, "served", opened)
    return places

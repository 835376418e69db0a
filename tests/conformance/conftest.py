"""Fixtures of the conformance suite: a backend, and stores beside their reference on it."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.conformance.backends import Embedded
from tests.conformance.served import Served, small_pieces
from tests.conformance.twin import Twin

settings.register_profile("long", max_examples=5000)
"""For `--hypothesis-profile=long --timeout=0`: minutes, not seconds."""

BACKENDS = {"embedded": (Embedded, nullcontext), "served": (Served, small_pieces)}
"""Each with the circumstances it runs in."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*offers): what of a backend a case cannot do without")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded]:
    """Return where stores are opened; skip a case that needs more than it offers."""
    kind, circumstances = BACKENDS[request.param]
    marks = request.node.iter_markers("needs")
    missing = {offer for mark in marks for offer in mark.args} - kind.offers
    if missing:
        pytest.skip(f"{request.param} has no {', '.join(sorted(missing))}")
    with circumstances():
        made = kind(tmp_path)
        yield made
        made.close()


@pytest.fixture
def open_twin(backend: Embedded) -> Iterator[Callable[..., Twin]]:
    """Return a function that opens a store with its reference; all are compared at the end."""
    opened: list[Twin] = []

    def open_one(name: str = "store", **options: Any) -> Twin:
        opened.append(Twin(backend, name, **options))
        return opened[-1]

    yield open_one
    for twin in opened:
        twin.check()

"""What tests of adapters share: a store, in this process and behind a server."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embstore
from embstore.handles.store import Store
from tests.faults.forks import Forks
from tests.serving import Server, patient

CACHE_BYTES = 1 << 24

# Of small tensors several threads compute more slowly, and where anything else runs on the cores,
# the barriers of OpenMP take a hundred times as long. Frameworks look when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def opening(path: Path) -> Callable[[], Store]:
    """Return what opens a store on the CPU."""
    return lambda: embstore.open(path, device="cpu", cache_bytes=CACHE_BYTES)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A server that forks processes; what one of them has imported, the next ones have."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    with opening(tmp_path / "embedded")() as store:
        yield store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "served"
    with Server(opening(path), path, durability="commands", socket=str(tmp_path / "s")) as server:
        yield server


@pytest.fixture(params=["embedded", "grpc", "shared_memory"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    server = request.getfixturevalue("server")
    address = server.address if request.param == "grpc" else f"unix:{server.socket}"
    with patient(address) as store:
        yield store

"""What the fault tests of the service share."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embstore.handles.store import Store
from embstore_client import connect
from tests.faults.forks import Forks
from tests.service.faults.ledger import Ledger, make_tables
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, Served
from tests.service.faults.wire import Sender, Wire

MEMORY = "/dev/shm"
_SWITCH_INTERVAL_S = 1e-4
"""As the server's own process has it: here client, loop and engine share an interpreter."""


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """Let threads take turns as they do in a server."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory in memory, where there is one, for stores that no real disk needs to hold."""
    yield from _quick_path()


@pytest.fixture(scope="module")
def module_path() -> Iterator[Path]:
    """The same, of all tests of a module."""
    yield from _quick_path()


def _quick_path() -> Iterator[Path]:
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="embstore-", dir=place) as directory:
        yield Path(directory)


@pytest.fixture
def serve(quick_path: Path) -> Iterator[Callable[..., Served]]:
    """Return a function that starts a server; all are stopped at the end."""
    started: list[Served] = []

    def start(name: str = "store", **settings: Any) -> Served:
        started.append(Served(quick_path / name, **settings))
        return started[-1]

    yield start
    for served in reversed(started):
        served.stop()


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Any:
    """What a test has `forked` set to."""
    return getattr(request, "param", {})


@pytest.fixture
def forked(forks: Forks, quick_path: Path, options: Any) -> Iterator[ForkedServer]:
    """A server that runs, may be killed and started again, and runs at the end."""
    made = ForkedServer(forks, quick_path / "store", **options)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def remote(forked: ForkedServer) -> Iterator[Store]:
    """A client of it."""
    with connect(forked.address, timeout_s=PATIENCE_S) as store:
        yield store


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """A server with the ledger's tables."""
    made = serve()
    made.on_engine(make_tables)
    return made


@pytest.fixture
def wire(served: Served) -> Iterator[Wire]:
    """A connection to it."""
    with Wire(served.address) as made:
        yield made


@pytest.fixture
def sender(wire: Wire) -> Sender:
    """A client of that connection."""
    return Sender(wire)


@pytest.fixture
def ledger(served: Served) -> Iterator[Ledger]:
    """What became of the updates; the store must agree in the end, and hold nothing for them."""
    made = Ledger()
    yield made
    with served.connect() as store:
        made.check(store)
        store.check_integrity()
    served.assert_idle()

"""What all fault tests share."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.damage import make_store
from tests.faults.forks import Forks
from tests.faults.promises import Promise

MEMORY = "/dev/shm"


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A server that forks processes to be killed."""
    server = Forks()
    yield server
    server.close()


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one, for stores that no real disk needs to hold."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="embstore-", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Promise]:
    """A closed store, and what it holds. Whoever changes it puts it right again."""
    path = tmp_path_factory.mktemp("made") / "store"
    return path, make_store(path)

"""What lists of commands are done on: the store of this process, in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.backends import Embedded


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Embedded]:
    backend = Embedded(tmp_path / "here")
    yield backend
    backend.close()

"""Command lines typed in the test's process, and how they end."""

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from embstore_server.cli import main


class Terminal(io.StringIO):
    """Where a person types, or reads."""

    def isatty(self) -> bool:
        return True


@dataclass
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on standard output, which has nothing else."""
        assert self.status == 0, self.err
        return json.loads(self.out)


class Shell:
    """Types commands, without variables of embstore; `last` words are added to each."""

    def __init__(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        last: Sequence[str] = (),
    ) -> None:
        self._capsys, self._last = capsys, last
        for name in [name for name in os.environ if name.startswith("EMBSTORE_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("COLUMNS", "200")
        # `serve` configures the log of its process, which is that of all tests here.
        monkeypatch.setattr("embstore_server.telemetry.logs.configure", lambda settings: None)

    def __call__(self, *words: str | Path) -> Ended:
        status = main([*map(str, words), *self._last])
        written = self._capsys.readouterr()
        return Ended(status, written.out, written.err)

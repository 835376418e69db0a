"""A finding, and the system that is examined."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `change` is the remedy; empty if the status is ok."""

    name: str
    status: Status
    found: str
    change: str = ""


def ok(name: str, found: str) -> Finding:
    """Return a finding with the status ok: nothing is wrong."""
    return Finding(name, "ok", found)


def warn(name: str, found: str, change: str) -> Finding:
    """Return a finding with the status warn: a server works, but less well than it could."""
    return Finding(name, "warn", found, change)


def fail(name: str, found: str, change: str) -> Finding:
    """Return a finding with the status fail: a server would not start, or would fail later."""
    return Finding(name, "fail", found, change)


@dataclass(frozen=True)
class System:
    """A system, as described by its own files below `root`."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return the text of a file, without surrounding spaces; empty if there is no file."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the number in a file; None: the file contains no number, but for example "max"."""
        text = self.text(path)
        return int(text) if text.isdecimal() else None

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        return (self.root / path).exists()

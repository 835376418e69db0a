"""A finding, and the system that is looked at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. `change` is the remedy; empty where it is ok."""

    name: str
    status: Status
    found: str
    change: str = ""


def ok(name: str, found: str) -> Finding:
    """Return that nothing is wrong."""
    return Finding(name, "ok", found)


def warn(name: str, found: str, change: str) -> Finding:
    """Return that it works, less well than it could."""
    return Finding(name, "warn", found, change)


def fail(name: str, found: str, change: str) -> Finding:
    """Return that a server would not start, or would not last."""
    return Finding(name, "fail", found, change)


@dataclass(frozen=True)
class System:
    """A system's own description, in files below `root`."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return the text of a file, without spaces around it; "" where there is no file."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the number that a file has; None: it has none, as "max"."""
        text = self.text(path)
        return int(text) if text.isdecimal() else None

    def has(self, path: str) -> bool:
        """Return whether there is such a file."""
        return (self.root / path).exists()

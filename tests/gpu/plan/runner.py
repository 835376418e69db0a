"""Parts of a plan, one after the other, each a process of its own, within a budget of time.

What a part found is in its JSON as soon as it has ended; whatever ends the plan costs no more than
the part that is running. A plan that is given the same folder again goes on: a part whose JSON says
that the same command has ended is not run again, unless it is named, was skipped, or failed with
other sources.

A part that takes much longer than is usual hangs, and has failed; so has one that had all of a
call's time. Another that the budget ends is left for the next call, and none is begun with less
left than it usually takes.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (".", "client", "proto", "server")
"""Where modules are, under ROOT: nothing need be installed."""
SOURCES = ("embstore", "tests/bench", "tests/gpu")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
LEFT_STATUS = 75
"""Of the process, when parts are left for the next call: EX_TEMPFAIL."""
TOLD_EVERY_S = 15.0
HANGS_AFTER = 4.0
"""Times what is usual."""
LIMIT_LEAST_S = 60.0
TAIL_LINES, TAIL_BYTES = 30, 16 << 10


@dataclass(frozen=True)
class Part:
    """One question to the device."""

    name: str
    settles: str
    """What is known once it has passed."""
    command: Sequence[str]
    usual_s: float
    """What it takes where it was seen, or is thought to take."""
    lacks: str | None = None
    """Why it cannot be run here."""
    figures: Path | None = None
    """A JSON that the command writes; it becomes part of the part's own."""

    @property
    def limit_s(self) -> float:
        """What it may take."""
        return max(HANGS_AFTER * self.usual_s, LIMIT_LEAST_S)


@dataclass
class Plan:
    """Parts, the folder of what they found, and the seconds there are for them."""

    parts: Sequence[Part]
    folder: Path
    budget_s: float
    tell: Callable[[str], None] = lambda text: print(text, flush=True)
    told_every_s: float = TOLD_EVERY_S
    sources: str = field(default_factory=lambda: _digest_of_sources())
    """A digest of what is measured, and of what measures."""
    _begin: float = field(default_factory=time.monotonic)

    def run(self, named: Sequence[str] = ()) -> int:
        """Run the parts that are named, or all that have not ended; return the exit status."""
        self.folder.mkdir(parents=True, exist_ok=True)
        due = [p for p in self.parts if p.name in named or not (named or self._has_ended(p))]
        left = []
        for number, part in enumerate(due, 1):
            self._tell(f"{number} of {len(due)}, {part.name}: {part.settles}")
            if part.lacks is not None:
                self._keep(part, SKIPPED, part.lacks, 0.0, None)
            elif number > 1 and self._left_s() < part.usual_s:
                left = [one.name for one in due[number - 1 :]]
                self._tell(f"it takes about {part.usual_s:.0f} s, {self._left_s():.0f} are left")
                break
            elif not self._run_one(part, is_first=number == 1):
                left = [one.name for one in due[number - 1 :]]
                break
        return self._sum_up(left)

    def _has_ended(self, part: Part) -> bool:
        found = self._found(part)
        if found is None or found["command"] != self._command(part):
            return False
        is_of_these = found["sources"] == self.sources
        return found["result"] == PASSED or (found["result"] == FAILED and is_of_these)

    def _found(self, part: Part) -> dict[str, Any] | None:
        """Return the JSON of a part."""
        path = self._path(part)
        return dict(json.loads(path.read_text())) if path.exists() else None

    def _command(self, part: Part) -> list[str]:
        """Return a command without this machine's paths."""
        words = [word.replace(str(self.folder), "OUT") for word in part.command]
        return ["python" if word == sys.executable else word for word in words]

    def _path(self, part: Part) -> Path:
        return self.folder / f"{part.name}.json"

    def _left_s(self) -> float:
        return self._begin + self.budget_s - time.monotonic()

    def _tell(self, text: str) -> None:
        seconds = time.monotonic() - self._begin
        self.tell(f"[{seconds:5.0f} of {self.budget_s:.0f} s] {text}")

    def _run_one(self, part: Part, *, is_first: bool) -> bool:
        """Run a part and keep what it found; False: the budget ended it, and may not again."""
        if part.figures is not None:
            part.figures.unlink(missing_ok=True)
        log, begin = self.folder / f"{part.name}.log", time.monotonic()
        until = begin + min(part.limit_s, self._left_s())
        with log.open("wb") as out:
            process = subprocess.Popen(
                part.command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": _search_path(), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = self._wait(process, part, log, begin, until)
            finally:
                _end(process)
        seconds = time.monotonic() - begin
        if status is None and seconds < part.limit_s and not is_first:
            self._tell(f"{part.name}: ended after {seconds:.0f} s, for the time is up")
            return False
        if status is None:
            why: str | None = f"took more than {seconds:.0f} s, {part.usual_s:.0f} are usual"
        else:
            why = f"ended with status {status}" if status else None
        self._keep(part, FAILED if why else PASSED, why, seconds, log)
        return True

    def _wait(
        self, process: "subprocess.Popen[bytes]", part: Part, log: Path, begin: float, until: float
    ) -> int | None:
        """Return the exit status; None: it had not ended in time."""
        while True:
            now = time.monotonic()
            if now >= until:
                return None
            try:
                return process.wait(min(self.told_every_s, until - now))
            except subprocess.TimeoutExpired:
                spent = time.monotonic() - begin
                last = (_tail(log) or ["nothing printed yet"])[-1]
                self._tell(f"{part.name}: {spent:.0f} s, usually {part.usual_s:.0f}: {last}")

    def _keep(
        self, part: Part, result: str, why: str | None, seconds: float, log: Path | None
    ) -> None:
        """Write the JSON of a part that has ended, and say how."""
        lines = [] if log is None else _tail(log)
        figures = None
        if part.figures is not None and part.figures.exists():
            try:
                figures = json.loads(part.figures.read_text())
            except ValueError as exc:  # it was ended in the middle
                result, why = FAILED, f"{why or 'ended'}; its figures are not whole: {exc}"
            part.figures.unlink()
        found: dict[str, Any] = {
            "part": part.name,
            "settles": part.settles,
            "result": result,
            "why": why,
            "seconds": round(seconds, 1),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "sources": self.sources,
            "command": self._command(part),
            "last_lines": lines,
            "figures": figures,
        }
        whole = self._path(part).with_suffix(".writing")
        whole.write_text(json.dumps(found, indent=1) + "\n")
        whole.replace(self._path(part))
        if result == FAILED:
            self.tell("\n".join(f"    {line}" for line in lines))
        self._tell(f"{part.name}: {result}" + (f", {why}" if why else f" in {seconds:.0f} s"))

    def _sum_up(self, left: Sequence[str]) -> int:
        """Tell how all parts of the folder ended, and return the exit status."""
        results = []
        for part in self.parts:
            found = self._found(part)
            if found is not None:
                results.append(found["result"])
                said = found["why"] or (found["last_lines"] or [""])[-1]
                earlier = "" if found["sources"] == self.sources else "with other sources: "
                head = f"{part.name:16}{found['result']:9}{found['seconds']:7.1f} s"
                self.tell(f"{head}  {earlier}{said[:160]}")
        if left:
            self.tell(f"left: {' '.join(left)}; the same command with this folder goes on")
        return 1 if FAILED in results else LEFT_STATUS if left else 0


def _search_path() -> str:
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*(str(ROOT / one) for one in PACKAGES), *([given] if given else [])])


def _digest_of_sources() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it has started, which may have outlived it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path) -> list[str]:
    """Return the last lines of a log that are not empty."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]

"""Shows the progress of the demo while it runs.

On a terminal each phase is a progress bar; a finished bar stays, and shows the time that the phase
took. In a log file or a pipe, bars that redraw themselves are useless. In this case a phase writes
a line at its beginning, its progress every few seconds, and its time at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_TELL_SECONDS = 5.0


class Advance(Protocol):
    """A function that reports progress, with a note."""

    def __call__(self, count: int, note: str = "") -> None:
        """Add `count` to the progress and replace the note."""


class Phases:
    """Shows phases on a console, each as long as its block runs. One thread at a time."""

    def __init__(self, console: Console, prefix: str = "") -> None:
        self._console = console
        self._prefix = prefix
        self._bars: Progress | None = None

    def titled(self, prefix: str) -> "Phases":
        """Return phases that are shown on the same console, with a prefix to each title."""
        titled = Phases(self._console, prefix)
        titled._bars = self._bars
        return titled

    @contextmanager
    def shown(self) -> Iterator["Phases"]:
        """Draw bars inside the with block if the console is a terminal."""
        if not self._console.is_terminal or self._console.quiet:
            yield self
            return
        with Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        ) as self._bars:
            yield self

    @contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """Show a phase with `total` units of work. None: their number is unknown."""
        title = self._prefix + title
        if self._bars is None:
            yield from self._without_bars(title, total)
            return
        bars = self._bars
        task = bars.add_task(escape(title), total=total, note="")

        def advance(count: int, note: str = "") -> None:
            bars.update(task, advance=count, note=escape(note))

        yield advance
        # The bar is complete, even if the phase ended before its total or had no total.
        done = max(1, int(bars.tasks[task].completed))
        bars.update(task, total=done, completed=done)

    def _without_bars(self, title: str, total: int | None) -> Iterator[Advance]:
        started = shown = perf_counter()
        done, said = 0, ""

        def advance(count: int, note: str = "") -> None:
            nonlocal done, shown, said
            done, said = done + count, note
            if perf_counter() - shown >= _TELL_SECONDS:
                shown = perf_counter()
                whole = f" of {total:,}" if total else ""
                self._say(f"  {done:,}{whole}  {note}".rstrip())

        self._say(f"{title} ...")
        yield advance
        self._say(f"  {perf_counter() - started:.1f} s  {said}".rstrip())

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

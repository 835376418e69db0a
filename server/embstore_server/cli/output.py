"""What commands show: tables for people, one JSON document for scripts, and progress meanwhile.

Progress is drawn on standard error and only on a terminal: a log file gets none. Where standard
output is no terminal, tables are as wide as they must be, so that no cell is cut.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:  # rich is loaded by what draws with it
    from rich.console import Console
    from rich.progress import Progress

_WIDTH_UNBOUNDED = 10_000
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

Advance = Callable[[int], None]
"""Tells that so many more are done."""
Told = Callable[[int, int], None]
"""Tells that so many are done, of so many."""


def show_json(document: Any) -> None:
    """Write one JSON document to standard output."""
    typer.echo(json.dumps(document, indent=2))


def show_text(text: str) -> None:
    """Write lines to standard output as they are."""
    typer.echo(text)


def show_error(message: str) -> None:
    """Write each line of a message to standard error behind "error: "."""
    for line in message.splitlines() or ["failed without a message"]:
        typer.echo(f"error: {line}", err=True)


def show_rows(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Draw a table; numbers are grouped by thousands and stand to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    lines = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = all(isinstance(line[index], int | float) for line in lines)
        table.add_column(column, justify="right" if lines and numbers else "left")
    for line in lines:
        table.add_row(*map(_cell, line))
    _console().print(table)


def show_parts(parts: Iterable[tuple[str, Iterable[tuple[str, Any]]]]) -> None:
    """Draw named parts of names and values, one below the other."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for title, lines in parts:
        for index, (name, value) in enumerate(lines):
            table.add_row("" if index else title, name, _cell(value))
    _console().print(table)


def bytes_text(count: int) -> str:
    """Return a number of bytes for people: 1.5 GiB."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advance]:
    """Show what is going on inside the with block; `total` None: nobody knows how long it takes."""
    with _drawing(is_counted=total is not None) as drawn:
        task = drawn.add_task(what, total=total)
        yield lambda count: drawn.advance(task, count)


@contextmanager
def progress_of(what: str) -> Iterator[Told]:
    """Show how many are done of how many, which may be 0 while nobody knows."""
    with _drawing(is_counted=True) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, of: drawn.update(task, completed=done, total=of or None)


@contextmanager
def _drawing(*, is_counted: bool) -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    counted = [BarColumn(), MofNCompleteColumn()] if is_counted else []
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *counted,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as drawn:
        yield drawn


def _console() -> "Console":
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_UNBOUNDED)


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))

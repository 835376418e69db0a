"""The output of commands: tables for people, one JSON document for scripts, and progress.

Progress is drawn on standard error, and only on a terminal, so a log file contains no progress. If
standard output is no terminal, tables are as wide as their cells require, so that no cell is cut.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli.exits import FAILED

if TYPE_CHECKING:  # rich is imported only by code that draws with it
    from rich.console import Console, RenderableType
    from rich.progress import Progress

_WIDTH_UNBOUNDED = 10_000

JSON_FLAG = typer.Option("--json", help="One JSON document on standard output, nothing else.")
AsJson = Annotated[bool, JSON_FLAG]
"""The flag of every command that shows a result."""

Shown = tuple[Any, "str | Callable[[], RenderableType]"]
"""The output of a command: a JSON document, and its form for people, as text or drawn by Rich."""

Advance = Callable[[int], None]
"""A function that is called with the number of items done since the last call."""
Progressed = Callable[[int, int], None]
"""A function that is called with the number of items done so far, and the number of all items (0:
unknown)."""


def show_json(document: Any) -> None:
    """Write one JSON document to standard output."""
    typer.echo(json.dumps(document, indent=2))


def show_json_line(document: Any) -> None:
    """Write a JSON document to standard output as one line, so that further documents can
    follow."""
    typer.echo(json.dumps(document))


def show_text(text: str) -> None:
    """Write lines to standard output unchanged."""
    typer.echo(text)


def show(document: Any, text: "str | Callable[[], RenderableType]", *, as_json: bool) -> None:
    """Write a JSON document, or its form for people: a text, or a drawing."""
    if as_json:
        show_json(document)
    elif callable(text):
        _console().print(text())
    elif text:
        typer.echo(text)


def show_error(message: str) -> None:
    """Write each line of a message to standard error after "error: "."""
    for line in message.splitlines() or ["failed without a message"]:
        typer.echo(f"error: {line}", err=True)


def show_hint(message: str) -> None:
    """Write a line to standard error after "hint: "."""
    typer.echo(f"hint: {message}", err=True)


def ask(question: str, what: str, done: str) -> None:
    """Ask for confirmation, and end the command if the answer is no. With --yes, commands do not
    call this function.

    Raises
    ------
    InvalidArgumentError : standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"{what}: expected --yes, because standard input is no terminal to ask at"
        )
    if not typer.confirm(question, err=True):
        show_error(f"{what} was not {done}")
        raise typer.Exit(FAILED)


def show_rows(columns: Iterable[str], lines: Iterable[Iterable[Any]]) -> None:
    """Write `rows` to standard output."""
    _console().print(rows(columns, lines))


def rows(columns: Iterable[str], lines: Iterable[Iterable[Any]]) -> "RenderableType":
    """Return a table; numbers are grouped by thousands and aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    cells = [list(line) for line in lines]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = all(isinstance(line[index], int | float) for line in cells)
        table.add_column(column, justify="right" if cells and numbers else "left")
    for line in cells:
        table.add_row(*map(_cell, line))
    return table


def parts(named: Iterable[tuple[str, Iterable[tuple[str, Any]]]]) -> "RenderableType":
    """Return a drawing of titled sections, one below the other; each line of a section is a name
    and a value."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for title, lines in named:
        for index, (name, value) in enumerate(lines):
            table.add_row("" if index else title, name, _cell(value))
    return table


def drawn(text: "str | Callable[[], RenderableType]") -> "RenderableType":
    """Return a command's output for people in a form that Rich draws."""
    from rich.text import Text

    return text() if callable(text) else Text(text)


def is_terminal() -> bool:
    """Return whether standard output is a terminal, which can be drawn over."""
    return _console().is_terminal


@contextmanager
def screen(first: "RenderableType") -> Iterator[Callable[["RenderableType"], None]]:
    """Draw on the whole terminal inside the block; yield the function that redraws it."""
    from rich.live import Live

    with Live(first, console=_console(), screen=True, auto_refresh=False) as live:
        yield lambda another: live.update(another, refresh=True)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Advance]:
    """Show progress inside the block; yield a function that takes the number of further items done.

    total : the number of all items; None if it is unknown
    """
    with _drawing(is_counted=total is not None) as drawn:
        task = drawn.add_task(what, total=total)
        yield lambda count: drawn.advance(task, count)


@contextmanager
def progress_of(what: str) -> Iterator[Progressed]:
    """Show progress inside the block; yield a function that takes the number of items done so far,
    and the total, as a server reports them."""
    with _drawing(is_counted=True) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, of: drawn.update(task, completed=done, total=of or None)


@contextmanager
def _drawing(*, is_counted: bool) -> Iterator["Progress"]:
    from rich import progress as p
    from rich.console import Console

    console = Console(stderr=True)
    counted = [p.BarColumn(), p.MofNCompleteColumn()] if is_counted else []
    text = p.TextColumn("{task.description}", markup=False)
    columns = [p.SpinnerColumn(), text, *counted, p.TimeElapsedColumn()]
    drawn = p.Progress(*columns, console=console, transient=True)
    with drawn if console.is_terminal else nullcontext():
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

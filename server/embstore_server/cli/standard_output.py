"""Standard output that takes no more: a pipe whose reader has gone, a full disk.

A command then ends with one line at most and without a trace. All output, Typer's help and Rich's
tables too, goes to `sys.stdout`: for the time of a command that is a stand-in here, which turns the
error of the operating system into OutputLostError. It is no OSError, so no handler on the way takes
it for another error. It is no EmbstoreError either: the command itself may well have succeeded.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class OutputLostError(Exception):
    """Standard output takes no more."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"standard output cannot be written: {reason.strerror}")
        self.is_pipe = isinstance(reason, BrokenPipeError)


class _Output:
    """A stream whose errors are OutputLostError; in everything else it is the one below."""

    def __init__(self, below: TextIO) -> None:
        self._below = below

    def write(self, text: str) -> int:
        with _lost():
            return self._below.write(text)

    def flush(self) -> None:
        with _lost():
            self._below.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise OutputLostError(exc) from None


@contextmanager
def standing_in() -> Iterator[None]:
    """Put the stand-in in the place of `sys.stdout` inside the block, and flush it at its end.

    Raises OutputLostError; then nothing is written any more, also not when Python ends.
    """
    below = sys.stdout
    sys.stdout = cast(TextIO, _Output(below))
    try:
        yield
        sys.stdout.flush()
    except OutputLostError:
        with suppress(OSError, ValueError):  # a test's stream has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), below.fileno())
        raise
    finally:
        sys.stdout = below

"""Standard output that can no longer be written, because the reader of a pipe has ended, or a disk
is full.

A command then ends with at most one line, and without a traceback. All output, even Typer's help
and Rich's tables, is written to `sys.stdout`. During a command, a stand-in from this module
replaces `sys.stdout`, and turns the error of the operating system into OutputLostError. This class
is no OSError, so no handler in between mistakes it for another error. It is no EmbstoreError
either, because the command itself may have succeeded.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class OutputLostError(Exception):
    """Standard output can no longer be written."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"standard output cannot be written: {reason.strerror}")
        self.is_pipe = isinstance(reason, BrokenPipeError)


class _Output:
    """A stream whose errors are OutputLostError; everything else is passed to the stream below."""

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
    """Replace `sys.stdout` by the stand-in inside the block, and flush it at the end.

    Raises OutputLostError if the output cannot be written; then nothing more is written, not even
    when Python ends.
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

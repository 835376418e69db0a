"""Signals that end a command. The command cleans up first, as after an error."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from embstore_server.cli.exits import BY_SIGNAL

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_IGNORED = (signal.SIGINT, *_ENDING)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(BY_SIGNAL + number)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and a closed terminal raise SystemExit in the block.

    Ctrl-C raises KeyboardInterrupt as always. An ignored signal (after nohup, for example) stays
    ignored.
    """
    heard = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    with _handled(heard, _end):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP in the block, which cleans up, and must be short."""
    with _handled(_IGNORED, signal.SIG_IGN):
        yield


@contextmanager
def _handled(numbers: Any, handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

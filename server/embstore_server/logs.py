"""The log: one line for an event, on standard error, for people or for what collects logs.

    2026-01-31T09:30:00.123Z INFO  ready listen=127.0.0.1:50051 store_id=4f...
    {"time": "2026-01-31T09:30:00.123Z", "level": "info", "event": "ready", "listen": ...}

An **event** is a short fixed name and fields; keys and rows are never among them. What uvicorn,
grpc, asyncio and warnings say takes the same form: their logger's name is the event, their text the
field `message`.

Some fields hold what a caller sent (a label, a request id). So that none can write a line of its
own, or a terminal's control sequence, every character that is not printable is escaped, and a plain
value with spaces, quotes or `=` is quoted: a line always splits into the fields it was made of. A
trace follows a plain line, indented, where no event can begin.
"""

import json
import logging
import sys
import time
from typing import Any

from embstore_server.settings import Settings

_FIELDS = "embstore_fields"
_BARE = frozenset("-_.:/+,*@%[](){}<>")
"""Of the characters that are no letters or digits, those that a plain value holds unquoted."""


def event(
    level: int, name: str, /, *, exc_info: BaseException | None = None, **fields: Any
) -> None:
    """Log an event. Any thread.

    Parameters
    ----------
    level : logging.DEBUG to logging.ERROR
    name : what happened, in a few fixed words; what varies belongs in `fields`
    exc_info : an exception, logged with its trace
    fields : numbers, texts, None, or containers of them; never keys or rows
    """
    logging.getLogger("embstore").log(level, "%s", name, exc_info=exc_info, extra={_FIELDS: fields})


def configure(settings: Settings) -> None:
    """Send everything that is logged in this process to standard error, in one form.

    Replaces what was configured before. uvicorn must be run with `log_config=None`, else it
    replaces this in turn.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    # Others log their own life at "info": here that is ours to tell.
    root.setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
    logging.getLogger("embstore").setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "asyncio"):
        other = logging.getLogger(name)
        other.handlers.clear()
        other.propagate = True
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """One JSON object a line, in ASCII: "time", "level", "event", then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fixed = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": _name(record),
        }
        fields = _fields(record)
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fixed | fields | fixed, default=str)


class PlainLines(logging.Formatter):
    """Time, level, event, then name=value; a trace below, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and the lines of its trace."""
        words = [_time(record), f"{record.levelname:5}", _escaped(_name(record))]
        words += [f"{name}={_plain(value)}" for name, value in _fields(record).items()]
        lines = [" ".join(words)]
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            lines += [f"    {_escaped(line)}" for line in trace]
        return "\n".join(lines)


def _name(record: logging.LogRecord) -> str:
    return record.getMessage() if hasattr(record, _FIELDS) else record.name


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    if hasattr(record, _FIELDS):
        return dict(getattr(record, _FIELDS))
    return {"message": record.getMessage()}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if text and all(c.isalnum() or c in _BARE for c in text):
        return text
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """Return `text` on one line that a terminal shows as it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

"""The log: one line per event, on standard error, for people or for a log collector.

    2026-01-31T09:30:00.123Z INFO  ready listen=127.0.0.1:50051 store_id=4f...
    {"time": "2026-01-31T09:30:00.123Z", "level": "info", "event": "ready", "listen": ...}

An **event** is a short fixed name with fields, which never contain keys or rows. Records of
uvicorn, grpc, asyncio and warnings get the same form: the logger's name is the event, and the
record's text is the field `message`.

Some fields are sent by a caller (a label, a request id). A caller must not be able to write a line
of its own, or a terminal's control sequence. Therefore every character that is not printable is
escaped. In plain lines, a value with spaces, quotes or `=` is quoted, so that a line always splits
into its fields. A traceback follows its plain line, and is indented; no event begins with an
indentation.

A message that a library repeats is logged once a minute, with the number of repetitions. Otherwise
a client that sends garbage to a port could fill the disk. Events caused by callers without a right
are limited in the same way. Within a minute, at most _KINDS_MAX different messages are logged in
this way; all further messages count as one. A caller that varies names and addresses can therefore
not cause more lines.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from embstore_server.setup.settings import Settings

REPEAT_S = 60.0
_ALIKE_CHARACTERS = 200
"""The number of leading characters that are compared: two messages of a library are alike if these
characters agree."""
_WITH_DIGITS = re.compile(r"\w*\d\w*")
"""Numbers and addresses: two messages that differ only in them are alike."""
_KINDS_MAX = 1000
_OTHERS = ("others",)
"""The kind of all further messages once a minute has _KINDS_MAX kinds."""
_FIELDS, _LIMITED_BY = "embstore_fields", "embstore_limited_by"
_BARE = frozenset("-_.:/+,*@%[](){}<>")
"""Characters, apart from letters and digits, that a plain value contains without quotes."""


def event(
    level: int,
    name: str,
    /,
    *,
    exc_info: BaseException | None = None,
    limited_by: Sequence[str] = (),
    **fields: Any,
) -> None:
    """Log an event. Its name is a few fixed words; values that vary belong in `fields`. Any thread.

    `fields` are numbers, texts, None, or containers of such values; never keys or rows. If
    `limited_by` (a few fixed words) is not empty, events with the same name and the same
    `limited_by` are written once per REPEAT_S; the field `left_out` contains the number of events
    that were not written.
    """
    extra = {_FIELDS: fields, _LIMITED_BY: tuple(limited_by)}
    logging.getLogger("embstore").log(level, "%s", name, exc_info=exc_info, extra=extra)


def configure(settings: Settings) -> None:
    """Send all log records of this process to standard error, in one form.

    This replaces any other configuration. uvicorn must run with `log_config=None`; otherwise it
    replaces this configuration.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(JsonLines() if settings.log_format == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    # Libraries log at "info" when they start and stop; the server's own events already contain
    # these facts.
    root.setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
    logging.getLogger("embstore").setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "asyncio"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    logging.captureWarnings(True)


class RepeatFilter(logging.Filter):
    """Lets each message of a library pass once in REPEAT_S.

    Events of the server with the same name and `limited_by` are treated alike; events without
    `limited_by` always pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, ...], _Said] = {}
        """The latest message of each kind, in the order in which the kinds can be written again."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written; add the number of suppressed records to a written
        record."""
        key = _key(record)
        if not key:
            return True
        now = self._clock()
        if key not in self._said and len(self._said) >= _KINDS_MAX:
            key = self._room_for(key, now)
        said = self._said.get(key)
        if said is not None and now < said.next_at:
            said.left_out += 1
            return False
        if said is not None and said.left_out:
            _add_left_out(record, said.left_out)
        self._said.pop(key, None)
        self._said[key] = _Said(now + REPEAT_S)
        return True

    def _room_for(self, key: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Return the kind under which a message of the new kind `key` is counted: `key` itself, or,
        if there are too many kinds, _OTHERS.

        Forgets the kinds that can be written again.
        """
        while self._said and now >= next(iter(self._said.values())).next_at:
            del self._said[next(iter(self._said))]
        return key if len(self._said) < _KINDS_MAX else _OTHERS


def _key(record: logging.LogRecord) -> tuple[str, ...]:
    """Return the key that alike records share; () for a record that is always written."""
    if hasattr(record, _FIELDS):
        limited_by: tuple[str, ...] = getattr(record, _LIMITED_BY)
        return limited_by and (record.name, record.getMessage(), *limited_by)
    if record.levelno < logging.WARNING:
        return ()
    error = record.exc_info[1] if record.exc_info else None
    words = _WITH_DIGITS.sub("#", record.getMessage())[:_ALIKE_CHARACTERS]
    return record.name, words, _WITH_DIGITS.sub("#", repr(error))[:_ALIKE_CHARACTERS]


def _add_left_out(record: logging.LogRecord, count: int) -> None:
    """Add to a record that is written the number of records like it that were not written."""
    if hasattr(record, _FIELDS):
        setattr(record, _FIELDS, {**getattr(record, _FIELDS), "left_out": count})
    else:
        record.msg, record.args = f"{record.getMessage()} ({count} more like it)", ()


@dataclass
class _Said:
    """A message that was logged, and is suppressed until `next_at`."""

    next_at: float
    left_out: int = 0


class JsonLines(logging.Formatter):
    """One JSON object per line, in ASCII: "time", "level", "event", then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        name, fields = _event(record)
        fixed = {"time": _time(record), "level": record.levelname.lower(), "event": name}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fixed | fields | fixed, default=str)


class PlainLines(logging.Formatter):
    """Lines of time, level, event, and then name=value; an indented traceback can follow."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and the lines of its traceback."""
        what, fields = _event(record)
        words = [_time(record), f"{record.levelname:5}", _escaped(what)]
        words += [f"{name}={_plain(value)}" for name, value in fields.items()]
        lines = [" ".join(words)]
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            lines += [f"    {_escaped(line)}" for line in trace]
        return "\n".join(lines)


def _event(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    if hasattr(record, _FIELDS):
        return record.getMessage(), dict(getattr(record, _FIELDS))
    return record.name, {"message": record.getMessage()}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if text and all(c.isalnum() or c in _BARE for c in text):
        return text
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """Return `text` in a form that fits one line and that a terminal shows as it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

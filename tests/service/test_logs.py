"""The log: one line for an event whatever is in it, for people and as JSON."""

import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embstore_server.setup.settings import Settings
from embstore_server.telemetry.logs import REPEAT_S, RepeatFilter, configure, event

Lines = Callable[[], list[str]]

HOSTILE = 'a\n2026-01-31T00:00:00.000Z INFO  ready listen="x"\r\x1b[31m\x00\x85\u2028\u202e\udc80'
"""Ends of line by every reckoning, a terminal's escape, and half of a surrogate pair."""


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """Return what reads the lines logged since; the process's logging is as before afterwards."""
    names = (None, "embstore", "uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "asyncio")
    loggers = [logging.getLogger(name) for name in names]
    before = [(g, g.level, list(g.handlers), g.propagate) for g in loggers]
    yield lambda: capsys.readouterr().err.split("\n")[:-1]
    logging.captureWarnings(False)
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def configured(**settings: Any) -> None:
    configure(Settings(data=Path("store"), **settings))


def failed() -> ZeroDivisionError:
    try:
        raise ZeroDivisionError("one\ntwo")
    except ZeroDivisionError as exc:
        return exc


def test_a_plain_line(lines):
    configured()
    event(logging.INFO, "ready", listen="127.0.0.1:50051", epoch=1, tls=None, on=True, text="a b")
    (line,) = lines()
    time, rest = line.split(" ", 1)
    assert rest == 'INFO  ready listen=127.0.0.1:50051 epoch=1 tls=null on=true text="a b"'
    assert len(time) == len("2026-01-31T09:30:00.123Z")
    assert time.endswith("Z")


def test_a_json_line(lines):
    configured(log_format="json")
    event(logging.WARNING, "slow call", ms=12.5, path=Path("x"), parts=[1, 2])
    (line,) = lines()
    found = json.loads(line)
    assert list(found) == ["time", "level", "event", "ms", "path", "parts"]
    assert found["level"] == "warning"
    assert found["event"] == "slow call"
    assert found["path"] == "x"
    assert found["parts"] == [1, 2]


@pytest.mark.parametrize("log_format", ["plain", "json"])
def test_no_field_writes_a_line_of_its_own(log_format, lines):
    configured(log_format=log_format)
    event(logging.INFO, "call", client=HOSTILE, after=1)
    event(logging.INFO, HOSTILE)
    written = lines()
    assert len(written) == 2
    assert all(line.isprintable() for line in written)


def test_a_json_field_is_read_back_as_it_was(lines):
    configured(log_format="json")
    event(logging.INFO, "call", client=HOSTILE)
    assert json.loads(lines()[0])["client"] == HOSTILE


@pytest.mark.parametrize("value", ["a=b", 'a"b', "a b", "", "a\\ b", "a\tb"])
def test_a_plain_value_that_could_be_misread_is_quoted(value, lines):
    configured()
    event(logging.INFO, "call", client=value)
    quoted = lines()[0].split("client=", 1)[1]
    assert json.loads(quoted) == value


def test_fields_do_not_replace_time_level_and_event(lines):
    configured(log_format="json")
    event(logging.INFO, "call", level="x", event="y", time="z", name="n")
    found = json.loads(lines()[0])
    assert (found["level"], found["event"], found["name"]) == ("info", "call", "n")
    assert found["time"] != "z"


def test_a_trace_follows_a_plain_line_indented(lines):
    configured()
    event(logging.ERROR, "internal error", exc_info=failed(), verb="Lookup")
    first, *trace = lines()
    assert first.endswith("ERROR internal error verb=Lookup")
    assert len(trace) > 2
    assert all(line.startswith("    ") for line in trace)


def test_a_trace_is_a_field_in_json(lines):
    configured(log_format="json")
    event(logging.ERROR, "internal error", exc_info=failed())
    (line,) = lines()
    assert "ZeroDivisionError: one\ntwo" in json.loads(line)["trace"]


@pytest.mark.parametrize("name", ["uvicorn.error", "uvicorn.access", "grpc", "asyncio", "other"])
def test_what_others_log_takes_the_same_form(name, lines):
    configured(log_format="json")
    logging.getLogger(name).warning("lost %s", HOSTILE)
    (line,) = lines()
    found = json.loads(line)
    assert found["event"] == name
    assert found["message"] == f"lost {HOSTILE}"


def test_warnings_are_logged(lines):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configured()
        warnings.warn("old", stacklevel=1)
    (line,) = lines()
    assert "WARNING py.warnings message=" in line


def test_others_are_silent_below_a_warning_unless_debugging(lines):
    configured()
    logging.getLogger("uvicorn.error").info("Started server process")
    event(logging.DEBUG, "detail")
    event(logging.INFO, "ready")
    assert len(lines()) == 1
    configured(log_level="debug")
    logging.getLogger("uvicorn.error").info("Started server process")
    event(logging.DEBUG, "detail")
    assert len(lines()) == 2


def test_a_level_silences_what_is_below(lines):
    configured(log_level="error")
    event(logging.WARNING, "slow call")
    logging.getLogger("grpc").warning("x")
    assert lines() == []


def test_configuring_twice_writes_each_line_once(lines):
    configured()
    configured()
    event(logging.INFO, "ready")
    assert len(lines()) == 1


def test_what_a_library_says_again_and_again_is_said_once_a_minute():
    now = [100.0]
    repeats = RepeatFilter(lambda: now[0])

    def said(text: str, *args: Any, name: str = "uvicorn.error") -> str:
        record = logging.LogRecord(name, logging.WARNING, "", 0, text, args, None)
        return record.getMessage() if repeats.filter(record) else ""

    assert said("Invalid HTTP request received.") == "Invalid HTTP request received."
    for _ in range(1000):
        assert not said("Invalid HTTP request received.")
    assert said("%s is not %d", "a", 1) == "a is not 1"
    assert said("%s is not %d", "b", 2), "another message"
    assert not said("%s is not %d", "a", 1)
    assert said("Invalid HTTP request received.", name="asyncio")
    now[0] += REPEAT_S
    assert said("Invalid HTTP request received.").endswith("(1000 more like it)")
    assert not said("Invalid HTTP request received.")


def test_messages_that_differ_by_numbers_and_addresses_are_alike():
    repeats = RepeatFilter(lambda: 0.0)

    def passes(text: str) -> bool:
        record = logging.LogRecord("opentelemetry", logging.WARNING, "", 0, text, (), None)
        return repeats.filter(record)

    assert passes("Transient error <object at 0x7f3b>, retrying in 1.07s.")
    assert not passes("Transient error <object at 0x7fa1>, retrying in 2.2s.")
    assert passes("Failed to export <object at 0x7f3b>")


def test_our_own_events_are_left_out_only_where_they_are_alike(lines):
    configured()
    for n in range(3):
        event(logging.WARNING, "slow call", ms=n)
        event(logging.WARNING, "slow call", ms=n, limited_by=("Update", "PERMISSION_DENIED"))
        event(logging.INFO, "audit", n=n, limited_by=("Update", "PERMISSION_DENIED"))
    found = lines()
    assert ["slow call" in line for line in found].count(True) == 4 and len(found) == 5
    (repeats,) = (f for f in logging.getLogger().handlers[0].filters if isinstance(f, RepeatFilter))
    repeats._clock = lambda: REPEAT_S + time.monotonic()
    event(logging.INFO, "audit", n=3, limited_by=("Update", "PERMISSION_DENIED"))
    assert "n=3 left_out=2" in lines()[-1]


def test_however_many_kinds_there_are_a_minute_has_few_lines():
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])

    def passed(count: int) -> list[str]:
        """Return what is written of so many messages, all different, of which none has a digit."""
        found = []
        for n in range(count):
            text = str(n).translate(str.maketrans("0123456789", "abcdefghij"))
            record = logging.LogRecord("a", logging.WARNING, "", 0, text, (), None)
            if repeats.filter(record):
                found.append(record.getMessage())
        return found

    assert len(passed(3000)) == 1001
    assert len(repeats._said) == 1001
    assert not passed(5000)
    now[0] += REPEAT_S
    assert len(passed(5000)) <= 1001
    assert len(repeats._said) <= 1001

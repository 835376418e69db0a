"""Standard output that takes no more, and looks that follow each other."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embstore_server.cli import exits, main, watching
from tests.service.shell import Shell
from tests.serving import Server

FULL = Path("/dev/full")
COMMANDS = [["--help"], ["--version"], ["table", "list"], ["stats", "--json"], ["sessions"]]


@pytest.fixture
def nobody_reads() -> Iterator[Any]:
    """A pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        yield pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(
    words: list[str],
    nobody_reads: Any,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EMBSTORE_ADDRESS", server.address)
    monkeypatch.setattr(sys, "stdout", nobody_reads)
    assert main(words) == exits.READER_GONE
    assert sys.stdout is nobody_reads
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_is_said_in_a_line(
    words: list[str],
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EMBSTORE_ADDRESS", server.address)
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == exits.FAILED
    said = "error: standard output takes no more: No space left on device\n"
    assert capsys.readouterr().err == said


def test_python_has_nothing_to_add_when_it_ends(nobody_reads: Any) -> None:
    words = [sys.executable, "-m", "embstore_server", "--version"]
    done = subprocess.run(
        words, stdout=nobody_reads, stderr=subprocess.PIPE, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (exits.READER_GONE, "")


# Looks that follow each other


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have Ctrl-C come in the third pause; what was slept."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching, "sleep", sleep)
    return slept


def test_watching_into_a_pipe_writes_a_line_a_look(typed: Shell, looks: list[float]) -> None:
    ended = typed("stats", "--watch", "--every", "0.5", "--json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.status, ended.err) == (0, "")
    assert [line["command"] for line in lines] == [2, 2, 2]
    assert looks == [0.5, 0.5, 0.5]


def test_sessions_are_watched_too(typed: Shell, looks: list[float]) -> None:
    for words in (["sessions"], ["sessions", "list"]):
        looks.clear()
        ended = typed(*words, "--watch")
        assert (ended.status, ended.out) == (0, "no session is live\n" * 3)
    assert looks == [2.0, 2.0, 2.0]


def test_watching_ends_when_nobody_reads(
    looks: list[float], nobody_reads: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBSTORE_ADDRESS", server.address)
    monkeypatch.setattr(sys, "stdout", nobody_reads)
    assert main(["stats", "--watch"]) == exits.READER_GONE
    assert looks == []


def test_a_stream_without_a_descriptor_that_fails_is_an_answer_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Refusing())
    assert main(["--version"]) == exits.READER_GONE
    assert capsys.readouterr().err == ""

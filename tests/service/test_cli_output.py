"""Standard output that takes no more, and looks that follow each other."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embstore_server.cli import exits, main, watching
from embstore_server.cli.top_view import StatsSample, drawn
from tests.service.test_rest_sessions import train

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
    words, nobody_reads, server, monkeypatch, capsys
):
    monkeypatch.setenv("EMBSTORE_ADDRESS", server.address)
    monkeypatch.setattr(sys, "stdout", nobody_reads)
    assert main(words) == exits.READER_GONE
    assert sys.stdout is nobody_reads
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_is_said_in_a_line(words, server, monkeypatch, capsys):
    monkeypatch.setenv("EMBSTORE_ADDRESS", server.address)
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == exits.FAILED
    said = "error: standard output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == said


def test_python_has_nothing_to_add_when_it_ends(nobody_reads):
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


def test_watching_into_a_pipe_writes_a_line_a_look(typed, looks):
    ended = typed("stats", "--watch", "--every", "0.5", "--json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.status, ended.err) == (0, "")
    assert [line["command"] for line in lines] == [2, 2, 2]
    assert looks == [0.5, 0.5, 0.5]


def test_sessions_are_watched_too(typed, looks):
    for words in (["sessions"], ["sessions", "list"]):
        looks.clear()
        ended = typed(*words, "--watch")
        assert (ended.status, ended.out) == (0, "no session is live\n" * 3)
    assert looks == [2.0, 2.0, 2.0]


def test_watching_ends_when_nobody_reads(looks, nobody_reads, server, monkeypatch):
    monkeypatch.setenv("EMBSTORE_ADDRESS", server.address)
    monkeypatch.setattr(sys, "stdout", nobody_reads)
    assert main(["stats", "--watch"]) == exits.READER_GONE
    assert looks == []


def test_a_stream_without_a_descriptor_that_fails_is_an_answer_as_well(monkeypatch, capsys):
    class Refusing(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Refusing())
    assert main(["--version"]) == exits.READER_GONE
    assert capsys.readouterr().err == ""


# `embstore top`, once and on a terminal; `--watch` on a terminal

PATIENCE_S = 120.0


def test_once_shows_every_part(typed, server):
    server.store.table("ads").lookup([1, 2, 2])
    train(server.store)
    shown = typed("top", "--once", "--every", "0.1")
    assert (shown.status, shown.err) == (0, "")
    for word in ("hit rate", "layout", "ctr", "gather", "ads", "memory", "checkpoints", "none"):
        assert word in shown.out, word


def test_once_shows_rates(typed, server, monkeypatch):
    """They were of the look before, which there was not: each was "-"."""
    slept: list[float] = []

    def busy(seconds: float) -> None:
        slept.append(seconds)
        server.store.table("ads").lookup([1, 2, 3])

    monkeypatch.setattr("embstore_server.cli.top.sleep", busy)
    head = typed("top", "--once").out.splitlines()[0]
    rates = dict(re.findall(r"(keys|commands) (\S+)", head))
    assert rates.keys() == {"keys", "commands"} and "-" not in rates.values(), head
    assert rates["keys"] not in ("0", "0.0") and slept == [2.0]


def test_a_pipe_gets_one_look(typed, server):
    assert typed("top", "--every", "0.1").out.count("no session is open") == 1


def test_json_is_the_document_of_stats(typed, server):
    found = json.loads(typed("top", "--once", "--json", "--every", "0.1").out)
    assert found.keys() == server.on_engine(lambda store: store.stats()).keys()


def test_rates_are_of_what_has_grown_since_the_look_before(server):
    ads = server.store.table("ads")
    before = server.store.stats()
    ads.lookup(list(range(100)))
    look = StatsSample(server.store.stats(), 12.0, (before, 10.0))
    keys = lambda stats: sum(pool["accesses"] for pool in stats["cache"]["pools"])  # noqa: E731
    assert look.grown(keys) == 100
    assert look.rate(keys) == 50
    assert StatsSample(before, 12.0).rate(keys) is None
    assert StatsSample(before, 12.0, (look.stats, 10.0)).rate(keys) is None  # restarted
    assert drawn(look)


@pytest.mark.parametrize("words", [["top"], ["stats", "--watch"]], ids=" ".join)
def test_a_terminal_is_drawn_over_until_ctrl_c(words, server):
    command = [sys.executable, "-m", "embstore_server", *words, "--every", "0.1"]
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    with subprocess.Popen(
        [*command, "--address", server.address],
        stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
    ) as top:  # fmt: skip
        os.close(theirs)
        seen = b""
        while seen.count(b"policy") < 3:  # two looks after the first
            assert select.select([ours], [], [], PATIENCE_S)[0], seen
            seen += os.read(ours, 65536)
        top.send_signal(2)
        while select.select([ours], [], [], PATIENCE_S)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # nobody has the other end any more
                break
        assert top.wait(PATIENCE_S) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in seen and b"\x1b[?1049l" in seen  # the screen was given back
    assert b"Traceback" not in seen

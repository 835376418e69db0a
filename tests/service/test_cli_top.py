"""`embstore top`: what it shows of a store, once and on a terminal; `--watch` on a terminal."""

import json
import os
import pty
import select
import subprocess
import sys

import pytest

from embstore_server.cli.top_view import Look, drawn
from tests.service.shell import Shell
from tests.service.test_rest_sessions import train
from tests.serving import Server

PATIENCE_S = 120.0


def test_once_shows_every_part(typed: Shell, server: Server) -> None:
    server.store.table("ads").lookup([1, 2, 2])
    train(server.store)
    shown = typed("top", "--once")
    assert (shown.status, shown.err) == (0, "")
    for word in ("hit rate", "layout", "ctr", "gather", "ads", "memory", "checkpoints", "none"):
        assert word in shown.out, word


def test_a_pipe_gets_one_look(typed: Shell, server: Server) -> None:
    assert "no session is open" in typed("top").out


def test_json_is_the_document_of_stats(typed: Shell, server: Server) -> None:
    found = json.loads(typed("top", "--once", "--json").out)
    assert found.keys() == server.on_engine(lambda store: store.stats()).keys()


def test_rates_are_of_what_has_grown_since_the_look_before(server: Server) -> None:
    ads = server.store.table("ads")
    before = server.store.stats()
    ads.lookup(list(range(100)))
    look = Look(server.store.stats(), 12.0, (before, 10.0))
    keys = lambda stats: sum(pool["accesses"] for pool in stats["cache"]["pools"])  # noqa: E731
    assert look.grown(keys) == 100
    assert look.rate(keys) == 50
    assert Look(before, 12.0).rate(keys) is None
    assert Look(before, 12.0, (look.stats, 10.0)).rate(keys) is None  # restarted
    assert drawn(look)


@pytest.mark.parametrize("words", [["top"], ["stats", "--watch"]], ids=" ".join)
def test_a_terminal_is_drawn_over_until_ctrl_c(words: list[str], server: Server) -> None:
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
